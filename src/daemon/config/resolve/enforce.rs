//! Rules for enforcing that concern more than one key.

use crate::config::check::Checks;
use plimsoll_core::analyze::foresight::policy::{ScaleDownWindow, Steps};
use plimsoll_core::decide::enforce::Behavior;
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// The default of `capacity.foresight.hold.replaces_window`: a configured window is waited for.
pub(super) fn window(section: Option<&Written<Behavior>>) -> ScaleDownWindow {
    let rules = section.and_then(|section| section.scale_down.as_ref());
    let written = rules.and_then(|rules| rules.stabilization_window);
    if written.is_some() { ScaleDownWindow::Waited } else { ScaleDownWindow::Replaced }
}

/// The default of `capacity.foresight.replaces_steps`: configured policies and their selection apply.
pub(super) fn steps(section: Option<&Written<Behavior>>) -> Steps {
    let rules = section.and_then(|section| section.scale_up.as_ref());
    let is_written = rules.is_some_and(|it| it.policies.is_some() || it.select.is_some());
    if is_written { Steps::Limited } else { Steps::Unlimited }
}

/// Checks the rules for changes of the desired replicas.
pub(super) fn check(behavior: &Behavior, checks: &mut Checks<'_>) {
    if let Some(panic) = behavior.panic
        && panic.window >= panic.stable_window
    {
        let [window, stable_window] = [panic.window, panic.stable_window].map(WrittenDuration::of);
        let rule =
            format!("must be shorter than enforce.panic.stable_window, which is {stable_window}");
        checks.problems.error("enforce.panic.window", rule, window);
    }
}
