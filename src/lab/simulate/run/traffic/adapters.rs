//! Adapters that requests ask for.

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::replica::adapters::{ADAPTERS_MAX, AdapterId};
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::scenario::AdapterShare;

/// Draws the adapter of a request, at this time within a period of the model's rate; `None` for the
/// model itself.
pub(super) fn draw(
    shares: &[AdapterShare],
    within: Micros,
    random: &mut Pcg64,
) -> Option<AdapterId> {
    if shares.is_empty() {
        return None;
    }

    let resting = shares.iter().filter(|it| !it.is_asked_for(within));
    let idle: f64 = resting.map(|it| it.share.fraction()).sum();

    let mut left = random.random::<f64>() * (1.0 - idle);
    let chosen = shares.iter().position(|it| {
        if it.is_asked_for(within) {
            left -= it.share.fraction();
        }
        left < 0.0
    });

    chosen.and_then(|place| u8::try_from(place).ok()).and_then(AdapterId::new)
}

/// The prompt in a world of its own adapter: the cached blocks of one adapter are useless to
/// others.
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

    fn share(name: &str, share: f64, from: Micros, until: Micros) -> AdapterShare {
        let name = ModelName::new(name).unwrap();
        AdapterShare { name, share: Fraction::new(share).unwrap(), from, until }
    }

    fn always(name: &str, amount: f64) -> AdapterShare {
        share(name, amount, Micros::ZERO, Micros::new(u64::MAX))
    }

    #[test]
    fn each_adapter_is_asked_for_by_its_share_and_the_model_by_the_rest() {
        let mut random = generator(1, Purpose::Adapters, 0);
        let shares = [always("sql", 0.5), always("chat", 0.2)];
        let drawn: Vec<Option<AdapterId>> =
            (0..10_000).map(|_| draw(&shares, Micros::ZERO, &mut random)).collect();
        let counts = [AdapterId::new(0), AdapterId::new(1), None]
            .map(|adapter| drawn.iter().filter(|it| **it == adapter).count());
        // The standard deviations are 50, 40 and 46; the bounds are four of those.
        assert!((4_800..=5_200).contains(&counts[0]), "{counts:?}");
        assert!((1_840..=2_160).contains(&counts[1]), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), drawn.len());

        let all = [always("sql", 1.0)];
        assert!((0..1_000).all(|_| draw(&all, Micros::ZERO, &mut random) == AdapterId::new(0)));
    }

    #[test]
    fn out_of_its_hours_the_share_of_an_adapter_goes_to_the_others() {
        let mut random = generator(1, Purpose::Adapters, 0);
        let at = Micros::from_secs;
        let shares = [share("day", 0.5, at(10), at(20)), share("always", 0.5, at(0), at(100))];
        let counts = [9, 20, 10].map(|second| {
            let drawn = (0..1_000).map(|_| draw(&shares, at(second), &mut random));
            drawn.filter(|it| *it == AdapterId::new(0)).count()
        });
        assert_eq!(counts[..2], [0, 0]);
        assert!((400..=600).contains(&counts[2]), "{counts:?}");

        let nobody = (0..1_000).all(|_| draw(&shares[..1], Micros::ZERO, &mut random).is_none());
        assert!(nobody, "half of them ask for the model itself, whatever the hour");
    }

    #[test]
    fn no_two_adapters_share_what_they_have_computed_of_a_prompt() {
        let mut worlds: Vec<u32> = Vec::new();
        for world in 0..3 {
            let prompt = PromptId { place: 3, world };
            let adapters = (0..ADAPTERS_MAX).map(AdapterId::new).chain([None]);
            worlds.extend(adapters.map(|adapter| apart(prompt, adapter).world));
        }

        worlds.sort_unstable();
        assert!(worlds.is_sorted_by(|one, other| one < other), "{worlds:?}");
    }
}
