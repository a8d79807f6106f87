//! Lines as the records that they were.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::{
    Accelerator, Bounds, Fleet, Incarnation, ModelKey, ModelName, Namespace, ReplicaKey,
    ReplicaName, Resource, Rest, Role, VariantKey, VariantSpec, ZeroWish,
};
use crate::observe::inventory::{Inventory, Known, NodeStock, QuotaStock, ReplicaUnit, UnitSource};
use crate::observe::template::{Container, Template};
use crate::observe::{
    Autoscaler, Counts, Demand, Inputs, Listing, Naming, Reading, Scale, ScaleState, Scrape,
    ScrapeFailure, Seen, Start, Way, WhyUnknown,
};
use crate::pipeline::Number;
use crate::trace::line::{
    AutoscalerLine, BoundsLine, ContainerLine, DecidedLine, DemandLine, InventoryLine, ListingLine,
    ReplicaLine, ScaleLine, ScrapeLine, SpecLine, TemplateLine, TickLine, UnitLine, WishLine,
};
use crate::trace::word::{self, Variant, variant_key};
use crate::trace::{Said, Tick, reading};
use crate::units::{CostPerHour, Fraction, Gpus, Replicas, Requests, Seconds};

/// What has been read of a file.
#[derive(Default)]
pub(super) struct Decoder {
    before: Inputs,
    replicas: Vec<ReplicaKey>,
    readings: BTreeMap<usize, Reading>,
    said: BTreeMap<VariantKey, (Said, Option<i64>)>,
}

type Read<T> = Result<T, String>;

impl Decoder {
    /// The tick that a line says.
    ///
    /// # Errors
    ///
    /// What it says cannot be.
    pub(super) fn tick(&mut self, line: TickLine) -> Read<Tick> {
        let now = line.at.ok_or("a tick without its instant")?.0;
        for replica in line.replicas {
            self.replicas.push(replica_key(replica)?);
        }
        let mut inputs = std::mem::take(&mut self.before);
        if let Some(fleet) = line.fleet {
            let specs: Vec<VariantSpec> = fleet.into_iter().map(spec).collect::<Read<_>>()?;
            let wishes: Vec<_> = line.wishes.into_iter().map(wish).collect::<Read<_>>()?;
            inputs.fleet = Arc::new(Fleet::new(specs).wishing(wishes));
        }
        for key in &line.unlisted {
            inputs.listings.remove(&key_of(key)?);
        }
        for line in line.listings {
            let (key, listing) = self.listing(line)?;
            inputs.listings.insert(key, listing);
        }
        // Places are in order, as the listings are.
        let mut aged = line.as_of.into_iter().peekable();
        for (at, listing) in inputs.listings.values_mut().enumerate() {
            if let Some((_, as_of)) = aged.next_if(|(place, _)| *place == at) {
                listing.as_of = as_of.0;
            }
        }
        if let Some((at, _)) = aged.next() {
            return Err(format!("a listing {at} that is not there"));
        }
        if let Some(line) = line.inventory {
            inputs.inventory = Arc::new(inventory(line)?);
        }
        if let Some(lines) = line.templates {
            inputs.templates = lines.into_iter().map(template).collect::<Read<_>>()?;
        }
        let scrapes = line.scrapes.into_iter().map(|line| self.scrape(line));
        let scrapes = scrapes.collect::<Read<_>>()?;
        if let Some(lines) = line.autoscalers {
            inputs.autoscalers = lines.into_iter().map(autoscaler).collect::<Read<_>>()?;
        }
        if let Some(lines) = line.demand {
            inputs.demand = lines.into_iter().map(demand).collect::<Read<_>>()?;
        }
        if let Some(starts) = line.starts {
            let start = |(of, created, ready): (usize, word::At, Option<word::At>)| {
                let start = Start { created: created.0, ready: ready.map(|it| it.0) };
                Ok((self.replica(of)?.clone(), start))
            };
            inputs.starts = starts.into_iter().map(start).collect::<Read<_>>()?;
        }
        let follows = line.follows.map(|lines| {
            let number = |(namespace, name, desired, at): (String, String, u32, word::At)| {
                let number = Number { desired: count(desired)?, inputs_at: at.0 };
                Ok((key_of(&(namespace, name))?, number))
            };
            lines.into_iter().map(number).collect::<Read<_>>()
        });
        let said = self.said(now, line.decided, &line.unsaid)?;
        self.before = inputs.clone();
        inputs.scrapes = scrapes;
        Ok(Tick { now, inputs, follows: follows.transpose()?, said })
    }

    fn replica(&self, place: usize) -> Read<&ReplicaKey> {
        self.replicas.get(place).ok_or_else(|| format!("a replica {place} that was not named"))
    }

    fn listing(&self, line: ListingLine) -> Read<(VariantKey, Listing)> {
        let ListingLine { key, replicas, unready, scale: written, relayed, as_of } = line;
        let keys = |places: Vec<usize>| -> Read<Vec<ReplicaKey>> {
            places.into_iter().map(|place| self.replica(place).cloned()).collect()
        };
        let listing = Listing {
            replicas: keys(replicas)?,
            unready: keys(unready)?,
            scale: scale(written)?,
            way: if relayed { Way::Relayed } else { Way::Scraped },
            as_of: as_of.0,
        };
        Ok((key_of(&key)?, listing))
    }

    fn scrape(&mut self, line: ScrapeLine) -> Read<Scrape> {
        let ScrapeLine { of, at, failed, page } = line;
        let outcome = match (failed, page) {
            (Some(label), None) => {
                let known = ScrapeFailure::ALL.into_iter().find(|it| it.label() == label);
                Err(known.ok_or_else(|| format!("the failure {label:?}"))?)
            }
            (None, Some(page)) => {
                let reading = reading::reading(self.readings.get(&of), page)?;
                self.readings.insert(of, reading.clone());
                Ok(reading)
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err("a scrape that is neither a page nor a failure".into());
            }
        };
        Ok(Scrape { replica: self.replica(of)?.clone(), at: at.0, outcome })
    }

    fn said(
        &mut self,
        now: Timestamp,
        decided: Vec<DecidedLine>,
        unsaid: &[Variant],
    ) -> Read<BTreeMap<VariantKey, Said>> {
        for key in unsaid {
            self.said.remove(&key_of(key)?);
        }
        for line in decided {
            let DecidedLine { key, desired, held, age, why } = line;
            let key = key_of(&key)?;
            let known = || self.said.get(&key).map(|(known, _)| known.why.clone());
            let why = why.or_else(known).ok_or("a decision without its steps")?;
            let desired = desired.map(count).transpose()?;
            let said = Said { desired, held, inputs_at: None, why };
            self.said.insert(key, (said, age));
        }
        let aged = |(key, (said, age)): (&VariantKey, &(Said, Option<i64>))| {
            let mut said = said.clone();
            said.inputs_at = match age {
                Some(age) => Some(before(now, *age)?),
                None => None,
            };
            Ok((key.clone(), said))
        };
        self.said.iter().map(aged).collect()
    }
}

fn before(now: Timestamp, age: i64) -> Read<Timestamp> {
    now.checked_sub(SignedDuration::from_nanos(age)).map_err(|error| error.to_string())
}

fn key_of(written: &Variant) -> Read<VariantKey> {
    variant_key(written).ok_or_else(|| "a variant without a name".to_owned())
}

fn count(count: u32) -> Read<Replicas> {
    Replicas::new(count).ok_or_else(|| format!("{count} replicas"))
}

fn name<N>(new: fn(&str) -> Option<N>, text: &str) -> Read<N> {
    new(text).ok_or_else(|| "an empty name".to_owned())
}

fn replica_key((namespace, variant, replica, incarnation): ReplicaLine) -> Read<ReplicaKey> {
    Ok(ReplicaKey {
        variant: key_of(&(namespace, variant))?,
        replica: name(ReplicaName::new, &replica)?,
        incarnation: incarnation.map(|it| name(Incarnation::new, &it)).transpose()?,
    })
}

fn spec(line: SpecLine) -> Read<VariantSpec> {
    let SpecLine {
        key,
        model,
        accelerator,
        gpus,
        role,
        cost,
        list_price,
        mismatch,
        start_time,
        bounds: written,
    } = line;
    let price =
        |it: word::Number| CostPerHour::new(it.0).ok_or_else(|| format!("a cost of {}", it.0));
    let factor =
        |it: word::Number| Fraction::new(it.0).ok_or_else(|| format!("a factor of {}", it.0));
    let duration = |it: word::Number| Seconds::new(it.0).ok_or_else(|| format!("{} s", it.0));
    let known = [Role::Both, Role::Prefill, Role::Decode].into_iter().find(|it| it.label() == role);
    Ok(VariantSpec {
        key: key_of(&key)?,
        model: name(ModelName::new, &model)?,
        accelerator: accelerator.map(|it| name(Accelerator::new, &it)).transpose()?,
        gpus: gpus.map(Gpus::new),
        role: known.ok_or_else(|| format!("the role {role:?}"))?,
        cost: price(cost)?,
        list_price: list_price.map(price).transpose()?,
        mismatch: mismatch.map_or(Ok(Fraction::ONE), factor)?,
        start_time: start_time.map(duration).transpose()?,
        bounds: bounds(written)?,
    })
}

fn wish(line: WishLine) -> Read<(ModelKey, ZeroWish)> {
    let WishLine { model: (namespace, model), may, after } = line;
    let namespace = name(Namespace::new, &namespace)?;
    let after = after.map(|it| Seconds::new(it.0).ok_or_else(|| format!("{} s", it.0)));
    let may = may.map(|it| if it { Rest::Allowed } else { Rest::Forbidden });
    let wish = ZeroWish { may, after: after.transpose()? };
    Ok((ModelKey { namespace, model: name(ModelName::new, &model)? }, wish))
}

fn bounds((min, max): BoundsLine) -> Read<Bounds> {
    let bounds = Bounds::new(count(min)?, max.map(count).transpose()?);
    bounds.ok_or_else(|| format!("bounds of {min} to {max:?}"))
}

fn scale(line: ScaleLine) -> Read<Scale> {
    Ok(match line {
        ScaleLine::Targets => Scale::Targets,
        ScaleLine::Known(wanted, current, ready, pending, written) => Scale::Known(ScaleState {
            wanted: count(wanted)?,
            current: count(current)?,
            ready: count(ready)?,
            pending: count(pending)?,
            bounds: written.map(bounds).transpose()?,
        }),
        ScaleLine::NotListed => Scale::Unknown(WhyUnknown::NotListed),
        ScaleLine::NoSuchTarget => Scale::Unknown(WhyUnknown::NoSuchTarget),
        ScaleLine::Forbidden => Scale::Unknown(WhyUnknown::Forbidden),
        ScaleLine::DuplicateOwners(owners) => Scale::Unknown(WhyUnknown::DuplicateOwners(owners)),
    })
}

fn inventory(line: InventoryLine) -> Read<Inventory> {
    let InventoryLine { nodes, quotas, free, units, pods } = line;
    let node = |(product, allocatable, used): (String, u32, u32)| {
        Ok(NodeStock {
            product: name(Accelerator::new, &product)?,
            allocatable: Gpus::new(allocatable),
            used_by_others: Gpus::new(used),
        })
    };
    let quota = |(namespace, named, resource, hard, used): (String, String, String, u32, u32)| {
        Ok(QuotaStock {
            namespace: name(Namespace::new, &namespace)?,
            name: named,
            resource: name(Resource::new, &resource)?,
            hard: Gpus::new(hard),
            used_by_others: Gpus::new(used),
        })
    };
    let room = |(product, nodes): (String, Vec<u32>)| {
        Ok((name(Accelerator::new, &product)?, nodes.into_iter().map(Gpus::new).collect()))
    };
    let unit = |(key, line): (Variant, UnitLine)| Ok((key_of(&key)?, unit(line)?));
    let pod = |(key, gpus): (Variant, u32)| Ok((key_of(&key)?, Gpus::new(gpus)));
    let nodes = nodes.map(|(at, nodes)| {
        let value = nodes.into_iter().map(node).collect::<Read<_>>()?;
        Ok::<_, String>(Known { value, as_of: at.0 })
    });
    let quotas = quotas.map(|(at, quotas)| {
        let value = quotas.into_iter().map(quota).collect::<Read<_>>()?;
        Ok::<_, String>(Known { value, as_of: at.0 })
    });
    Ok(Inventory {
        nodes: nodes.transpose()?,
        free: free.into_iter().map(room).collect::<Read<_>>()?,
        quotas: quotas.transpose()?,
        units: units.into_iter().map(unit).collect::<Read<_>>()?,
        pods: pods.into_iter().map(pod).collect::<Read<_>>()?,
    })
}

fn unit((resource, gpus, product, template): UnitLine) -> Read<ReplicaUnit> {
    Ok(ReplicaUnit {
        resource: name(Resource::new, &resource)?,
        gpus: Gpus::new(gpus),
        product: product.map(|it| name(Accelerator::new, &it)).transpose()?,
        source: if template { UnitSource::Template } else { UnitSource::Pods },
    })
}

fn template(line: TemplateLine) -> Read<(VariantKey, Arc<Template>)> {
    let TemplateLine { key, unit: written, containers } = line;
    let container = |line: ContainerLine| {
        let ContainerLine { image, command, args, environment, files } = line;
        Container { image, command, args, environment, files }
    };
    let unit = written.map(unit).transpose()?;
    let containers = containers.into_iter().map(container).collect();
    Ok((key_of(&key)?, Arc::new(Template { unit, containers })))
}

fn autoscaler(line: AutoscalerLine) -> Read<(VariantKey, Autoscaler)> {
    let AutoscalerLine { key, name, windows: (up, down) } = line;
    let window = |it: word::Number| Seconds::new(it.0).ok_or_else(|| format!("{} s", it.0));
    Ok((key_of(&key)?, Autoscaler { name, scale_up: window(up)?, scale_down: window(down)? }))
}

fn demand(line: DemandLine) -> Read<(ModelKey, Vec<Demand>)> {
    let DemandLine { model: (namespace, model), signals, counting, unnamed, numberless } = line;
    let signal = |(place, (signal, seen)): (usize, (String, Option<(word::Number, word::At)>))| {
        let read = || numberless.iter().find(|(numberless, _)| *numberless == place);
        let seen = match (seen, read()) {
            (Some((requests, at)), _) => {
                let requests = Requests::new(requests.0);
                Seen::Number(requests.ok_or("a number of requests that cannot be")?, at.0)
            }
            (None, Some((_, at))) => Seen::NoNumber(at.0),
            (None, None) => Seen::Never,
        };
        let is_counting = counting.contains(&place);
        let counts = if is_counting { Counts::Requests } else { Counts::Something };
        let is_unnamed = unnamed.contains(&place);
        let naming = if is_unnamed { Naming::Unnamed } else { Naming::Named };
        Ok(Demand { signal, seen, counts, naming })
    };
    let namespace = name(Namespace::new, &namespace)?;
    let key = ModelKey { namespace, model: name(ModelName::new, &model)? };
    Ok((key, signals.into_iter().enumerate().map(signal).collect::<Read<_>>()?))
}
