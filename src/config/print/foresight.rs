//! What `foresight` judges by, as a file says it.

use crate::analyze::foresight::policy::{
    Backlog, Bursts, ColdStart, ErrorBudget, Gateway, Growth, Hold, Learning, Memory, Policy, Ramp,
    Rounding, Schedule, Unevenness, Window, Young,
};
use crate::config::file;
use crate::config::print::written;

/// The section that gives this policy.
pub(crate) fn section(policy: &Policy) -> file::Foresight {
    let Memory { lengths, kv } = policy.memory;
    let Rounding { excess, spare } = policy.rounding;
    let Learning { batch_min, noise, drift, clip } = policy.learning;
    file::Foresight {
        limit_share: Some(policy.limit_share.fraction()),
        reaction_time: Some(written(policy.reaction)),
        look_back: Some(written(policy.look_back)),
        growth: Some(growth(policy.growth)),
        ramp: Some(ramp(policy.ramp)),
        unevenness: Some(unevenness(policy.unevenness)),
        young: Some(young(policy.young)),
        bursts: Some(bursts(policy.bursts)),
        backlog: Some(backlog(policy.backlog)),
        gateway: Some(gateway(policy.gateway)),
        error_budget: Some(error_budget(policy.error_budget)),
        schedule: Some(schedule(policy.schedule)),
        hold: Some(hold(policy.hold)),
        history_min: Some(written(policy.history_min)),
        rounding: Some(file::Rounding {
            excess: Some(excess.fraction()),
            spare: Some(spare.fraction()),
        }),
        cold_start: Some(cold_start(policy.cold_start)),
        memory: Some(file::Memory { lengths: Some(written(lengths)), kv: Some(written(kv)) }),
        learning: Some(file::Learning {
            batch_min: Some(batch_min.fraction()),
            noise: Some(noise.fraction()),
            drift: Some(drift.fraction()),
            clip: Some(clip.fraction()),
        }),
    }
}

fn growth(term: Option<Growth>) -> file::Growth {
    let enabled = Some(term.is_some());
    let Some(Growth { quantile, cap }) = term else {
        return file::Growth { enabled, ..file::Growth::default() };
    };
    file::Growth { enabled, quantile: Some(quantile.fraction()), cap: Some(cap.fraction()) }
}

fn ramp(term: Option<Ramp>) -> file::Ramp {
    let enabled = Some(term.is_some());
    let Some(Ramp { certainty, jump, still_rising, bend, cap }) = term else {
        return file::Ramp { enabled, ..file::Ramp::default() };
    };
    file::Ramp {
        enabled,
        certainty: Some(certainty.fraction()),
        jump: Some(jump.fraction()),
        still_rising: Some(still_rising.fraction()),
        bend: Some(bend.fraction()),
        cap: Some(cap.fraction()),
    }
}

fn unevenness(term: Option<Unevenness>) -> file::Unevenness {
    let deviations = term.map(|Unevenness { deviations }| deviations.fraction());
    file::Unevenness { enabled: Some(term.is_some()), deviations }
}

fn young(term: Option<Young>) -> file::Young {
    let enabled = Some(term.is_some());
    let Some(Young { margin, horizons }) = term else {
        return file::Young { enabled, ..file::Young::default() };
    };
    file::Young { enabled, margin: Some(margin.fraction()), horizons: Some(horizons.fraction()) }
}

fn bursts(term: Option<Bursts>) -> file::Bursts {
    let enabled = Some(term.is_some());
    let Some(Bursts { quantile, over, ttft_share }) = term else {
        return file::Bursts { enabled, ..file::Bursts::default() };
    };
    file::Bursts {
        enabled,
        quantile: Some(quantile.fraction()),
        over: Some(written(over)),
        ttft_share: Some(ttft_share.fraction()),
    }
}

fn backlog(term: Option<Backlog>) -> file::Backlog {
    let enabled = Some(term.is_some());
    let Some(Backlog { usual, drain, cap }) = term else {
        return file::Backlog { enabled, ..file::Backlog::default() };
    };
    file::Backlog {
        enabled,
        usual: Some(usual.requests()),
        drain: Some(written(drain)),
        cap: Some(cap.fraction()),
    }
}

fn gateway(term: Option<Gateway>) -> file::Gateway {
    let enabled = Some(term.is_some());
    let Some(Gateway { drain, cap }) = term else {
        return file::Gateway { enabled, ..file::Gateway::default() };
    };
    file::Gateway { enabled, drain: Some(written(drain)), cap: Some(cap.fraction()) }
}

fn error_budget(term: Option<ErrorBudget>) -> file::ErrorBudget {
    let enabled = Some(term.is_some());
    let Some(ErrorBudget { share, step, decay, cap }) = term else {
        return file::ErrorBudget { enabled, ..file::ErrorBudget::default() };
    };
    file::ErrorBudget {
        enabled,
        share: Some(share.fraction()),
        step: Some(step.fraction()),
        decay: Some(written(decay)),
        cap: Some(cap.fraction()),
    }
}

fn schedule(term: Option<Schedule>) -> file::Schedule {
    let enabled = Some(term.is_some());
    let Some(Schedule { share, cap }) = term else {
        return file::Schedule { enabled, ..file::Schedule::default() };
    };
    file::Schedule { enabled, share: Some(share.fraction()), cap: Some(cap.fraction()) }
}

fn hold(term: Option<Hold>) -> file::Hold {
    let enabled = Some(term.is_some());
    let Some(Hold { starts, min, jitter, window }) = term else {
        return file::Hold { enabled, ..file::Hold::default() };
    };
    file::Hold {
        enabled,
        starts: Some(starts.fraction()),
        min: Some(written(min)),
        jitter: Some(written(jitter)),
        replaces_window: Some(match window {
            Window::Replaced => true,
            Window::Waited => false,
        }),
    }
}

fn cold_start(term: Option<ColdStart>) -> file::ColdStart {
    let enabled = Some(term.is_some());
    let Some(ColdStart { waiting, margin, times }) = term else {
        return file::ColdStart { enabled, ..file::ColdStart::default() };
    };
    file::ColdStart {
        enabled,
        waiting: Some(waiting.requests()),
        margin: Some(margin.fraction()),
        times: Some(times.fraction()),
    }
}
