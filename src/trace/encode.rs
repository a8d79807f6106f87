//! Records as lines, each as short as the ones before it in the same file allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fleet::{Accelerator, Bounds, ModelKey, ReplicaKey, Rest, VariantKey, ZeroWish};
use crate::observe::inventory::{Inventory, NodeStock, QuotaStock, ReplicaUnit, UnitSource};
use crate::observe::template::{Container, Template};
use crate::observe::{
    Counts, Demand, Inputs, Listing, Naming, Reading, Scale, ScaleState, Scrape, Seen, Way,
    WhyUnknown,
};
use crate::trace::line::{
    AutoscalerLine, BoundsLine, ContainerLine, DecidedLine, DemandLine, InventoryLine, ListingLine,
    ScaleLine, ScrapeLine, SpecLine, TemplateLine, TickLine, UnitLine, WishLine,
};
use crate::trace::word::{At, Number, variant};
use crate::trace::{Said, Tick, reading};
use crate::units::{Fraction, Gpus, Requests};

/// What has been written to a file.
#[derive(Default)]
pub(super) struct Encoder {
    before: Inputs,
    /// The place of each replica.
    places: BTreeMap<ReplicaKey, usize>,
    readings: BTreeMap<usize, Reading>,
    said: BTreeMap<VariantKey, (Said, Option<i64>)>,
}

impl Encoder {
    /// A tick as a line after those before it.
    pub(super) fn tick(&mut self, tick: Tick) -> TickLine {
        let Tick { now, inputs, follows, said } = tick;
        let mut line = TickLine { at: Some(At(now)), ..TickLine::default() };
        let Inputs { fleet, listings, inventory, templates, .. } = &inputs;
        let Inputs { scrapes, autoscalers, demand, starts, .. } = &inputs;
        if *fleet != self.before.fleet {
            line.fleet = Some(fleet.variants().map(spec_line).collect());
            line.wishes = fleet.all_wishes().map(wish_line).collect();
        }
        self.listings(listings, &mut line);
        if *inventory != self.before.inventory {
            line.inventory = Some(inventory_line(inventory));
        }
        if *templates != self.before.templates {
            let template = |(key, it): (&VariantKey, &Arc<Template>)| template_line(key, it);
            line.templates = Some(templates.iter().map(template).collect());
        }
        line.scrapes = scrapes.iter().map(|scrape| self.scrape(scrape, &mut line)).collect();
        if *autoscalers != self.before.autoscalers {
            let autoscaler =
                |(key, it): (&VariantKey, &crate::observe::Autoscaler)| AutoscalerLine {
                    key: variant(key),
                    name: it.name.clone(),
                    windows: (Number(it.scale_up.seconds()), Number(it.scale_down.seconds())),
                };
            line.autoscalers = Some(autoscalers.iter().map(autoscaler).collect());
        }
        if *demand != self.before.demand {
            let signals = demand.iter().map(|(model, signals)| DemandLine {
                model: (model.namespace.as_str().into(), model.model.as_str().into()),
                signals: signals.iter().map(signal).collect(),
                counting: places(signals, |it| it.counts == Counts::Requests),
                numberless: numberless(signals),
                unnamed: places(signals, |it| it.naming == Naming::Unnamed),
            });
            line.demand = Some(signals.collect());
        }
        if *starts != self.before.starts {
            let start = |(key, start): (&ReplicaKey, &crate::observe::Start)| {
                (self.place(key, &mut line), At(start.created), start.ready.map(At))
            };
            line.starts = Some(starts.iter().map(start).collect());
        }
        line.follows = follows.map(|numbers| {
            let number = |(key, number): (&VariantKey, &crate::pipeline::Number)| {
                let (namespace, name) = variant(key);
                (namespace, name, number.desired.count(), At(number.inputs_at))
            };
            numbers.iter().map(number).collect()
        });
        self.said(now, said, &mut line);
        self.before = Inputs { scrapes: Vec::new(), ..inputs };
        line
    }

    fn place(&mut self, key: &ReplicaKey, line: &mut TickLine) -> usize {
        if let Some(place) = self.places.get(key) {
            return *place;
        }
        let place = self.places.len();
        self.places.insert(key.clone(), place);
        let (namespace, name) = variant(&key.variant);
        let incarnation = key.incarnation.as_ref().map(|it| it.as_str().to_owned());
        line.replicas.push((namespace, name, key.replica.as_str().to_owned(), incarnation));
        place
    }

    fn listings(&mut self, listings: &BTreeMap<VariantKey, Listing>, line: &mut TickLine) {
        let before = std::mem::take(&mut self.before.listings);
        for (at, (key, listing)) in listings.iter().enumerate() {
            let known = before.get(key);
            if known == Some(listing) {
                continue;
            }
            let Listing { replicas, unready, scale, way, as_of } = listing;
            if known.is_some_and(|it| {
                it.replicas == *replicas
                    && it.unready == *unready
                    && it.scale == *scale
                    && it.way == *way
            }) {
                line.as_of.push((at, At(*as_of)));
                continue;
            }
            let mut places = |keys: &[ReplicaKey]| -> Vec<usize> {
                keys.iter().map(|key| self.place(key, line)).collect()
            };
            let (replicas, unready) = (places(replicas), places(unready));
            line.listings.push(ListingLine {
                key: variant(key),
                replicas,
                unready,
                scale: scale_line(scale),
                relayed: *way == Way::Relayed,
                as_of: At(*as_of),
            });
        }
        let gone = before.keys().filter(|key| !listings.contains_key(*key));
        line.unlisted = gone.map(variant).collect();
    }

    fn scrape(&mut self, scrape: &Scrape, line: &mut TickLine) -> ScrapeLine {
        let Scrape { replica, at, outcome } = scrape;
        let of = self.place(replica, line);
        let (failed, page) = match outcome {
            Err(failure) => (Some(failure.label().to_owned()), None),
            Ok(reading) => {
                let page = reading::line(self.readings.get(&of), reading);
                self.readings.insert(of, reading.clone());
                (None, Some(page))
            }
        };
        ScrapeLine { of, at: At(*at), failed, page }
    }

    fn said(
        &mut self,
        now: jiff::Timestamp,
        said: BTreeMap<VariantKey, Said>,
        line: &mut TickLine,
    ) {
        let before = std::mem::take(&mut self.said);
        line.unsaid = before.keys().filter(|key| !said.contains_key(*key)).map(variant).collect();
        for (key, said) in said {
            let age = said.inputs_at.map(|at| {
                i64::try_from(now.as_nanosecond() - at.as_nanosecond()).unwrap_or(i64::MAX)
            });
            let known = before.get(&key);
            let same_why = known.is_some_and(|(known, _)| known.why == said.why);
            let same = known.is_some_and(|(known, known_age)| {
                known.desired == said.desired && known.held == said.held && *known_age == age
            });
            if !(same && same_why) {
                line.decided.push(DecidedLine {
                    key: variant(&key),
                    desired: said.desired.map(crate::units::Replicas::count),
                    held: said.held,
                    age,
                    why: (!same_why).then(|| said.why.clone()),
                });
            }
            self.said.insert(key, (said, age));
        }
    }
}

fn spec_line(spec: &crate::fleet::VariantSpec) -> SpecLine {
    let crate::fleet::VariantSpec {
        key,
        model,
        accelerator,
        gpus,
        role,
        cost,
        list_price,
        mismatch,
        start_time,
        bounds,
    } = spec;
    SpecLine {
        key: variant(key),
        model: model.as_str().to_owned(),
        accelerator: accelerator.as_ref().map(|it| it.as_str().to_owned()),
        gpus: gpus.map(crate::units::Gpus::count),
        role: role.label().to_owned(),
        cost: Number(cost.per_hour()),
        list_price: list_price.map(|it| Number(it.per_hour())),
        mismatch: (*mismatch != Fraction::ONE).then(|| Number(mismatch.fraction())),
        start_time: start_time.map(|it| Number(it.seconds())),
        bounds: bounds_line(*bounds),
    }
}

fn wish_line((model, wish): (&ModelKey, &ZeroWish)) -> WishLine {
    let ZeroWish { may, after } = wish;
    WishLine {
        model: (model.namespace.as_str().into(), model.model.as_str().into()),
        may: may.map(|it| it == Rest::Allowed),
        after: after.map(|it| Number(it.seconds())),
    }
}

fn bounds_line(bounds: Bounds) -> BoundsLine {
    (bounds.min().count(), bounds.max().map(crate::units::Replicas::count))
}

fn scale_line(scale: &Scale) -> ScaleLine {
    match scale {
        Scale::Targets => ScaleLine::Targets,
        Scale::Known(ScaleState { wanted, current, ready, pending, bounds }) => ScaleLine::Known(
            wanted.count(),
            current.count(),
            ready.count(),
            pending.count(),
            bounds.map(bounds_line),
        ),
        Scale::Unknown(WhyUnknown::NotListed) => ScaleLine::NotListed,
        Scale::Unknown(WhyUnknown::NoSuchTarget) => ScaleLine::NoSuchTarget,
        Scale::Unknown(WhyUnknown::Forbidden) => ScaleLine::Forbidden,
        Scale::Unknown(WhyUnknown::DuplicateOwners(owners)) => {
            ScaleLine::DuplicateOwners(owners.clone())
        }
    }
}

fn inventory_line(inventory: &Inventory) -> InventoryLine {
    let Inventory { nodes, free, quotas, units, pods } = inventory;
    let node = |it: &NodeStock| {
        let NodeStock { product, allocatable, used_by_others } = it;
        (product.as_str().to_owned(), allocatable.count(), used_by_others.count())
    };
    let quota = |it: &QuotaStock| {
        let QuotaStock { namespace, name, resource, hard, used_by_others } = it;
        let (namespace, resource) = (namespace.as_str().into(), resource.as_str().into());
        (namespace, name.clone(), resource, hard.count(), used_by_others.count())
    };
    let room = |(product, nodes): (&Accelerator, &Vec<Gpus>)| {
        (product.as_str().to_owned(), nodes.iter().map(|it| it.count()).collect())
    };
    InventoryLine {
        nodes: nodes.as_ref().map(|it| (At(it.as_of), it.value.iter().map(node).collect())),
        quotas: quotas.as_ref().map(|it| (At(it.as_of), it.value.iter().map(quota).collect())),
        free: free.iter().map(room).collect(),
        units: units.iter().map(|(key, it)| (variant(key), unit_line(it))).collect(),
        pods: pods.iter().map(|(key, gpus)| (variant(key), gpus.count())).collect(),
    }
}

fn unit_line(unit: &ReplicaUnit) -> UnitLine {
    let ReplicaUnit { resource, gpus, product, source } = unit;
    let product = product.as_ref().map(|it| it.as_str().to_owned());
    (resource.as_str().to_owned(), gpus.count(), product, *source == UnitSource::Template)
}

fn template_line(key: &VariantKey, template: &Template) -> TemplateLine {
    let Template { unit, containers } = template;
    TemplateLine {
        key: variant(key),
        unit: unit.as_ref().map(unit_line),
        containers: containers.iter().map(container_line).collect(),
    }
}

fn container_line(container: &Container) -> ContainerLine {
    let Container { image, command, args, environment, files } = container.clone();
    ContainerLine { image, command, args, environment, files }
}

/// The places of the signals of which something is so.
fn places(signals: &[Demand], is_so: impl Fn(&Demand) -> bool) -> Vec<usize> {
    let found = signals.iter().enumerate().filter(|(_, signal)| is_so(signal));
    found.map(|(place, _)| place).collect()
}

fn numberless(signals: &[Demand]) -> Vec<(usize, At)> {
    let read = |(place, signal): (usize, &Demand)| match signal.seen {
        Seen::NoNumber(at) => Some((place, At(at))),
        Seen::Never | Seen::Number(..) => None,
    };
    signals.iter().enumerate().filter_map(read).collect()
}

fn signal(demand: &Demand) -> (String, Option<(Number, At)>) {
    let number = |(requests, at): (Requests, _)| (Number(requests.requests()), At(at));
    let seen = demand.seen.number().map(number);
    (demand.signal.clone(), seen)
}
