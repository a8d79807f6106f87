//! Variants: what each is, where its replicas are, and that no two of them claim the same.

use std::collections::BTreeMap;

use crate::collect::targets::{Record, Source};
use crate::config::check::Checks;
use crate::config::file::{
    DnsTargetKeys, FileTargetKeys, PrometheusTargetKeys, ReplicaBoundKeys, ScaleTarget, TargetKeys,
    VariantKeys,
};
use crate::config::names;
use crate::config::problem::join;
use crate::config::resolve::scrape::{self, Scraped};
use crate::config::{ReadBy, Scrape, Targets, Variant};
use plimsoll_core::fleet::{
    Accelerator, Bounds, ModelName, Namespace, VariantKey, VariantName, VariantSpec,
};
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Replicas;

/// What a variant claims for itself, and the path that claims it.
type Claims = BTreeMap<String, String>;

/// What there is beside the variants.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    /// How replicas are scraped.
    pub(crate) global: &'a Scraped,
    /// Whether there is a cluster that they can refer to.
    pub(crate) cluster: bool,
    /// Whether more of them are discovered in it.
    pub(crate) discovery: bool,
    /// Whether there is a Prometheus.
    pub(crate) prometheus: bool,
}

/// Resolves the variants that can be, each with all of its keys; all others have a problem.
pub(crate) fn resolve(
    written: Option<&[Option<Written<VariantKeys>>]>,
    around: Around<'_>,
    checks: &mut Checks<'_>,
) -> Vec<(VariantKeys, Variant)> {
    let written = written.unwrap_or_default();
    if written.is_empty() && !around.discovery {
        let rule = "is empty: there must be at least one variant, or kubernetes.discovery";
        checks.problems.missing("variants", rule);
    }
    let mut claims = Claims::new();
    written
        .iter()
        .enumerate()
        .filter_map(|(at, variant)| Some((at, variant.as_ref()?)))
        .filter_map(|(at, variant)| {
            let path = format!("variants[{at}]");
            One { path, written: variant, around }.resolve(&mut claims, checks)
        })
        .collect()
}

/// One variant as written, and where.
struct One<'a> {
    path: String,
    written: &'a Written<VariantKeys>,
    around: Around<'a>,
}

impl One<'_> {
    /// Resolves everything before giving up on anything, so that all problems are found.
    fn resolve(
        &self,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<(VariantKeys, Variant)> {
        let written = self.written;
        let global = self.around.global;
        // What a variant scrapes like lies over the global section.
        let usual = VariantKeys { scrape: global.keys.clone(), ..VariantKeys::default() };
        let mut keys =
            settings::resolve_over(Some(written), &usual, &self.path, &mut checks.problems);
        let aliases = self.aliases(&keys.model, checks);
        let bounds = self.bounds(keys.replicas, checks);
        let overlaid = written.scrape.clone().unwrap_or_default();
        let Scraped { keys: _, scrape } =
            scrape::overlay(&self.at("scrape"), global, &overlaid, checks);
        let is_refused = checks.problems.refused(&self.at("namespace"));
        let namespace = Some(&keys.namespace).filter(|_| !is_refused);
        let port = scrape.endpoint.port;
        let listing = Listing { one: self, namespace: namespace.map(String::as_str), port };
        let targets = listing.resolve(written.targets.as_ref(), &mut keys.targets, claims, checks);
        let read_by = self.read_by(keys.source, targets.as_ref(), checks);
        let key = VariantKey {
            namespace: Namespace::new(namespace?)?,
            variant: VariantName::new(&keys.name)?,
        };
        claim(format!("the key {key}"), &self.at("name"), claims, checks);
        let spec = VariantSpec {
            key,
            model: ModelName::new(&keys.model)?,
            accelerator: keys.accelerator.as_deref().and_then(Accelerator::new),
            gpus: keys.gpus,
            role: keys.role,
            cost: keys.cost,
            list_price: keys.list_price,
            mismatch: keys.mismatch,
            start_time: keys.start_time,
            bounds,
        };
        keys.source = Some(read_by);
        let Scrape { endpoint, settings: scrape } = scrape;
        Some((keys, Variant { spec, aliases, targets: targets?, endpoint, scrape, read_by }))
    }

    /// Who reads the replicas' metrics: Prometheus where there is one, unless it says otherwise.
    fn read_by(
        &self,
        written: Option<ReadBy>,
        targets: Option<&Targets>,
        checks: &mut Checks<'_>,
    ) -> ReadBy {
        let found_there = matches!(targets, Some(Targets::Prometheus(_)));
        match written {
            Some(ReadBy::Prometheus) if !self.around.prometheus => {
                let rule = "needs the section prometheus, with the url of one";
                checks.problems.error(self.at("source"), rule, "prometheus");
            }
            Some(ReadBy::Scrape) if found_there => {
                let rule = "must be prometheus, because targets.prometheus finds no addresses";
                checks.problems.error(self.at("source"), rule, "scrape");
            }
            Some(_) | None => {}
        }
        match written {
            Some(ReadBy::Prometheus) => ReadBy::Prometheus,
            None if self.around.prometheus || found_there => ReadBy::Prometheus,
            Some(ReadBy::Scrape) | None => ReadBy::Scrape,
        }
    }

    fn at(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn aliases(&self, model: &str, checks: &mut Checks<'_>) -> Vec<ModelName> {
        let written = self.written.model_aliases.as_deref().unwrap_or_default();
        let mut aliases: Vec<ModelName> = Vec::new();
        for (at, alias) in written.iter().enumerate() {
            let path = format!("{}[{at}]", self.at("model_aliases"));
            let text = alias.as_deref().filter(|_| !checks.problems.refused(&path));
            let Some(alias) = text.and_then(ModelName::new) else { continue };
            if alias.as_str() == model || aliases.contains(&alias) {
                checks.problems.warning(path, "is a name that the model has already");
            }
            aliases.push(alias);
        }
        aliases
    }

    fn bounds(&self, keys: ReplicaBoundKeys, checks: &mut Checks<'_>) -> Bounds {
        let ReplicaBoundKeys { min, max } = keys;
        if let Some(max) = max.filter(|max| min > *max) {
            let path = self.at("replicas");
            let rule = format!("must not be below {path}.min, which is {min}");
            checks.problems.error(join(&path, "max"), rule, max);
        }
        Bounds::new(Replicas::saturating(min), max.map(Replicas::saturating)).unwrap_or_default()
    }
}

/// Where a variant's replicas are, and what is needed to say it.
struct Listing<'a> {
    one: &'a One<'a>,
    namespace: Option<&'a str>,
    port: u16,
}

impl Listing<'_> {
    fn resolve(
        &self,
        written: Option<&Written<TargetKeys>>,
        keys: &mut TargetKeys,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<Targets> {
        let path = self.one.at("targets");
        let written = written.cloned().unwrap_or_default();
        let listed = |source| Some(Targets::Listed(source));
        let addresses = written.addresses.map(|written| {
            let addresses = self.addresses(&written, claims, checks);
            keys.addresses = Some(addresses.clone());
            listed(Source::Static(addresses))
        });
        let file = written.file.zip(keys.file.as_ref());
        let file = file.map(|(written, keys)| listed(self.files(written, keys, claims, checks)));
        let dns = written.dns.zip(keys.dns.as_mut());
        let dns = dns.map(|(written, keys)| listed(self.names(written, keys, claims, checks)));
        let scale_target =
            keys.scale_target.as_ref().map(|target| self.scale_target(target, claims, checks));
        let selector = written.selector.map(|written| self.selector(written, claims, checks));
        let prometheus = written.prometheus.map(|written| self.matched(written, claims, checks));
        let mut all: Vec<(&str, Option<Targets>)> = [
            ("static", addresses),
            ("file", file),
            ("dns", dns),
            ("scale_target", scale_target),
            ("selector", selector),
            ("prometheus", prometheus),
        ]
        .into_iter()
        .filter_map(|(key, targets)| Some((key, targets?)))
        .collect();
        let rule = "must have exactly one of static, file, dns, scale_target, selector and \
                    prometheus";
        match all.len() {
            1 => return all.pop().and_then(|(_, targets)| targets),
            // What is there and cannot be read has been taken out, and is a problem already.
            0 if !checks.problems.refused_below(&path) => checks.problems.missing(path, rule),
            0 => {}
            _ => {
                let keys: Vec<&str> = all.iter().map(|(key, _)| *key).collect();
                checks.problems.error(path, rule, keys.join(", "));
            }
        }
        None
    }

    fn addresses(
        &self,
        written: &[Option<String>],
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Vec<String> {
        let path = self.at("static");
        if written.is_empty() {
            checks.problems.error_at(&path, "must have at least one address");
        }
        let mut addresses = Vec::new();
        for (at, text) in written.iter().enumerate() {
            let Some(text) = text else { continue };
            let path = format!("{path}[{at}]");
            let Some(address) = names::address(text, self.port) else {
                let rule = "must be HOST:PORT or HOST; scheme and path belong into scrape";
                checks.problems.error(path, rule, format!("{text:?}"));
                continue;
            };
            claim(format!("the address {address}"), &path, claims, checks);
            addresses.push(address);
        }
        addresses
    }

    fn files(
        &self,
        written: Written<FileTargetKeys>,
        keys: &FileTargetKeys,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Source {
        let path = self.at("file");
        let paths_path = join(&path, "paths");
        let written = written.paths.unwrap_or_default();
        if written.is_empty() {
            checks.problems.missing(&paths_path, "must have at least one file");
        }
        for (at, file) in written.iter().enumerate() {
            let path = format!("{paths_path}[{at}]");
            let Some(file) = checks.file_later(&path, file.as_ref()) else { continue };
            claim(format!("the file {}", file.display()), &path, claims, checks);
        }
        Source::File { paths: keys.paths.clone(), refresh: keys.refresh }
    }

    fn names(
        &self,
        written: Written<DnsTargetKeys>,
        keys: &mut DnsTargetKeys,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Source {
        let path = self.at("dns");
        let DnsTargetKeys { record, refresh, .. } = *keys;
        let names_path = join(&path, "names");
        let port_path = join(&path, "port");
        let port = match (record, written.port) {
            (Record::Srv, Some(port)) => {
                checks.problems.error(port_path, "must be absent: SRV records carry it", port);
                None
            }
            (Record::Srv, None) => None,
            (Record::A | Record::Aaaa, _) => keys.port.or(Some(self.port)),
        };
        keys.port = port;
        let written = written.names.unwrap_or_default();
        if written.is_empty() {
            checks.problems.missing(&names_path, "must have at least one name");
        }
        for (at, name) in written.iter().enumerate() {
            let path = format!("{names_path}[{at}]");
            let name = name.as_deref().filter(|_| !checks.problems.refused(&path));
            let Some(name) = name else { continue };
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            claim(format!("the DNS name {name}{port}"), &path, claims, checks);
        }
        Source::Dns { names: keys.names.clone(), record, port, refresh }
    }

    fn scale_target(
        &self,
        target: &ScaleTarget,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<Targets> {
        let path = self.at("scale_target");
        let is_refused = checks.problems.refused_below(&path);
        self.needs_cluster(&path, checks);
        let namespace = self.namespace.filter(|_| !is_refused)?;
        // Versions of one group show the same objects.
        let group = target.api_version.split_once('/').map_or("", |(group, _)| group);
        let kind =
            if group.is_empty() { target.kind.clone() } else { format!("{}.{group}", target.kind) };
        claim(
            format!("the scale target {kind} {namespace}/{}", target.name),
            &path,
            claims,
            checks,
        );
        Some(Targets::ScaleTarget(target.clone()))
    }

    fn selector(
        &self,
        written: String,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<Targets> {
        let path = self.at("selector");
        self.needs_cluster(&path, checks);
        let rule = "must be a label selector, such as \"app=llama,tier in (gold, silver)\"";
        checks.text(&path, Some(&written), names::is_selector, rule)?;
        let namespace = self.namespace?;
        claim(format!("the pods of {written} in {namespace}"), &path, claims, checks);
        Some(Targets::Selector(written))
    }

    fn matched(
        &self,
        written: Written<PrometheusTargetKeys>,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<Targets> {
        let path = self.at("prometheus");
        if !self.one.around.prometheus {
            checks.problems.error_at(&path, "needs the section prometheus, with the url of one");
        }
        let path = join(&path, "match");
        let written = written.labels.unwrap_or_default();
        if written.is_empty() {
            let rule = "must have at least one label, such as {job: vllm}";
            checks.problems.missing(&path, rule);
        }
        let mut labels = BTreeMap::new();
        for (name, value) in written {
            let path = join(&path, &name);
            if !names::is_prometheus_label(&name) {
                checks.problems.error_at(&path, names::PROMETHEUS_LABEL);
            }
            let Some(value) = value.filter(|value| !value.is_empty()) else {
                checks.problems.error_at(&path, "must not be empty: it would match other targets");
                continue;
            };
            labels.insert(name, value);
        }
        if labels.is_empty() {
            return None;
        }
        let pairs: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        claim(format!("the series with {}", pairs.join(", ")), &path, claims, checks);
        Some(Targets::Prometheus(labels))
    }

    fn needs_cluster(&self, path: &str, checks: &mut Checks<'_>) {
        if !self.one.around.cluster {
            checks.problems.error_at(path, "needs kubernetes.enabled to be true");
        }
    }

    fn at(&self, key: &str) -> String {
        join(&self.one.at("targets"), key)
    }
}

/// Notes that a path claims something, and refuses it when another path does too: two variants on
/// the same replicas would both count them.
fn claim(what: String, path: &str, claims: &mut Claims, checks: &mut Checks<'_>) {
    match claims.get(&what) {
        Some(other) => {
            checks.problems.error_at(path, format!("claims {what}, which {other} has claimed"));
        }
        None => {
            claims.insert(what, path.to_owned());
        }
    }
}
