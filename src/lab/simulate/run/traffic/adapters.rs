//! Adapters that requests ask for.

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::replica::adapters::{ADAPTERS_MAX, AdapterId};
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::scenario::AdapterShare;

/// Draws the adapter that a request asks for, so long after the model's rate last began; `None` for
/// the model itself.
pub(super) fn draw(
    shares: &[AdapterShare],
    within: Micros,
    random: &mut Pcg64,
) -> Option<AdapterId> {
    if shares.is_empty() {
        return None;
    }
    let idle = shares.iter().filter(|it| !it.is_asked_for(within));
    let idle: f64 = idle.map(|it| it.share.fraction()).sum();

    let mut left = random.random::<f64>() * (1.0 - idle);
    let chosen = shares.iter().position(|it| {
        if it.is_asked_for(within) {
            left -= it.share.fraction();
        }
        left < 0.0
    });
    chosen.and_then(|place| u8::try_from(place).ok()).and_then(AdapterId::new)
}

/// The prompt, in a world that no other adapter has: what one has computed is of no use to others.
pub(super) fn apart(prompt: PromptId, adapter: Option<AdapterId>) -> PromptId {
    let worlds = u32::from(ADAPTERS_MAX) + 1;
    let own = adapter.map_or(0, |adapter| u32::from(adapter.place()) + 1);
    PromptId { world: prompt.world.saturating_mul(worlds).saturating_add(own), ..prompt }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};
    use plimsoll_core::fleet::ModelName;
    use plimsoll_core::units::Fraction;

    #[test]
    fn each_adapter_is_asked_for_by_its_share_and_the_model_by_the_rest() {
        let share = |name: &str, share| AdapterShare {
            name: ModelName::new(name).unwrap(),
            share: Fraction::new(share).unwrap(),
            from: Micros::ZERO,
            until: Micros::new(u64::MAX),
        };
        let mut random = generator(1, Purpose::Adapters, 0);
        let shares = [share("sql", 0.5), share("chat", 0.2)];
        let drawn: Vec<Option<AdapterId>> =
            (0..10_000).map(|_| draw(&shares, Micros::ZERO, &mut random)).collect();
        let of = |place: u8| drawn.iter().filter(|it| **it == AdapterId::new(place)).count();
        // The standard deviations are 50, 40 and 46; the bounds are four of those.
        assert!((4_800..=5_200).contains(&of(0)), "{}", of(0));
        assert!((1_840..=2_160).contains(&of(1)), "{}", of(1));
        let none = drawn.iter().filter(|it| it.is_none()).count();
        assert_eq!(of(0) + of(1) + none, drawn.len());
        let all = [share("sql", 1.0)];
        assert!((0..1_000).all(|_| draw(&all, Micros::ZERO, &mut random) == AdapterId::new(0)));
    }

    #[test]
    fn out_of_its_hours_the_share_of_an_adapter_goes_to_the_others() {
        let share = |name: &str, from, until| AdapterShare {
            name: ModelName::new(name).unwrap(),
            share: Fraction::new(0.5).unwrap(),
            from: Micros::from_secs(from),
            until: Micros::from_secs(until),
        };
        let mut random = generator(1, Purpose::Adapters, 0);
        let shares = [share("day", 10, 20), share("always", 0, 100)];
        let mut of = |second: u64| {
            let at = Micros::from_secs(second);
            let drawn = (0..1_000).map(|_| draw(&shares, at, &mut random));
            drawn.filter(|it| *it == AdapterId::new(0)).count()
        };
        assert_eq!((of(9), of(20)), (0, 0));
        assert!((400..=600).contains(&of(10)));
        let nobody = (0..1_000).all(|_| draw(&shares[..1], Micros::ZERO, &mut random).is_none());
        assert!(nobody, "half of them ask for the model itself, whatever the hour");
    }

    #[test]
    fn no_two_adapters_share_what_they_have_computed_of_a_prompt() {
        let prompt = |world| PromptId { place: 3, world };
        let adapters = || (0..ADAPTERS_MAX).map(AdapterId::new).chain([None]);
        let mut worlds: Vec<u32> = (0..3)
            .flat_map(|world| adapters().map(move |adapter| apart(prompt(world), adapter).world))
            .collect();
        worlds.sort_unstable();
        assert!(worlds.is_sorted_by(|one, other| one < other), "{worlds:?}");
    }
}
