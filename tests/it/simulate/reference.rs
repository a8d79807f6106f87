//! The engine's rules once more, written for reading: every request is looked at in every step.

use plimsoll::simulate::Micros;
use plimsoll::simulate::replica::Request;
use plimsoll::simulate::replica::settings::{Admission, Settings};

/// The times of one request, from its arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) queue: Micros,
    pub(crate) ttft: Micros,
    pub(crate) e2e: Micros,
    pub(crate) preemptions: u32,
}

#[derive(Clone, Debug)]
struct Job {
    arrived: Micros,
    prompt: u32,
    output: u32,
    /// Tokens to compute before the next new one: the prompt and what was kept of the answer.
    target: u32,
    /// Tokens in the cache.
    stored: u32,
    generated: u32,
    blocks: u32,
    scheduled: bool,
    answered: bool,
    times: Times,
}

/// Runs all requests, which arrive in order, to their end.
pub(crate) fn run(settings: &Settings, arrivals: &[(Micros, Request)]) -> Vec<Times> {
    let mut jobs = arrivals
        .iter()
        .map(|&(arrived, Request { prompt, output, .. })| Job {
            arrived,
            prompt,
            output,
            target: prompt,
            stored: 0,
            generated: 0,
            blocks: 0,
            scheduled: false,
            answered: false,
            times: Times::default(),
        })
        .collect::<Vec<_>>();
    let (mut now, mut next) = (Micros::ZERO, 0);
    let (mut waiting, mut running) = (Vec::<usize>::new(), Vec::<usize>::new());
    loop {
        if waiting.is_empty() && running.is_empty() {
            let Some(job) = jobs.get(next) else { break };
            now = now.max(job.arrived);
        }
        while jobs.get(next).is_some_and(|job| job.arrived <= now) {
            waiting.push(next);
            next += 1;
        }
        let plan = build(settings, &mut jobs, &mut waiting, &mut running, now);
        let (mut prefill, mut decodes, mut read) = (0, 0, 0);
        for &(index, tokens) in &plan {
            if jobs[index].stored < jobs[index].target {
                prefill += tokens;
            } else {
                decodes += 1;
                read += u64::from(jobs[index].stored) + 1;
            }
        }
        now += settings.step.of(prefill, decodes, read);
        for (index, tokens) in plan {
            let job = &mut jobs[index];
            job.stored += tokens;
            if job.stored < job.target {
                continue;
            }
            job.generated += 1;
            if !job.answered {
                job.answered = true;
                job.times.ttft = now.since(job.arrived);
            }
            if job.generated == job.output {
                job.times.e2e = now.since(job.arrived);
                job.blocks = 0;
                running.retain(|&other| other != index);
            }
        }
    }
    jobs.into_iter().map(|job| job.times).collect()
}

/// Decides which requests compute how many tokens in the step that begins.
fn build(
    settings: &Settings,
    jobs: &mut [Job],
    waiting: &mut Vec<usize>,
    running: &mut Vec<usize>,
    now: Micros,
) -> Vec<(usize, u32)> {
    let blocks = |tokens: u32| tokens.div_ceil(settings.block_size);
    let free = |jobs: &[Job]| settings.kv_blocks - jobs.iter().map(|job| job.blocks).sum::<u32>();
    let mut budget = settings.max_num_batched_tokens;
    let mut plan = Vec::new();
    let mut preempted = false;
    let mut position = 0;
    'batch: while position < running.len() && budget > 0 {
        let index = running[position];
        let job = &jobs[index];
        let tokens =
            if job.stored < job.target { (job.target - job.stored).min(budget) } else { 1 };
        let needed = blocks(job.stored + tokens);
        while needed - jobs[index].blocks > free(jobs) {
            preempted = true;
            let victim = running.pop().unwrap();
            let job = &mut jobs[victim];
            job.times.preemptions += 1;
            job.blocks = 0;
            job.stored = 0;
            match settings.admission {
                Admission::WholePrompt => job.target = job.prompt + job.generated,
                Admission::FirstChunk => (job.generated, job.answered) = (0, false),
            }
            waiting.insert(0, victim);
            if victim == index {
                break 'batch;
            }
        }
        jobs[index].blocks = needed;
        plan.push((index, tokens));
        budget -= tokens;
        position += 1;
    }
    while !preempted && budget > 0 && running.len() < settings.max_num_seqs as usize {
        let Some(&index) = waiting.first() else { break };
        let chunk = jobs[index].target.min(budget);
        let room = match settings.admission {
            Admission::WholePrompt => jobs[index].target,
            Admission::FirstChunk => chunk,
        };
        if blocks(room) > free(jobs) {
            break;
        }
        running.push(waiting.remove(0));
        let job = &mut jobs[index];
        job.blocks = blocks(chunk);
        if !job.scheduled {
            job.scheduled = true;
            job.times.queue = now.since(job.arrived);
        }
        plan.push((index, chunk));
        budget -= chunk;
    }
    plan
}
