//! Variants: their properties and replica lists, and a check that no two variants claim the same
//! object.

use std::collections::BTreeMap;

use crate::collect::targets::{Record, TargetSource};
use crate::config::check::Checks;
use crate::config::effective::{ScrapeDefaults, VariantConfig, VariantTargets};
use crate::config::file::ReadBy;
use crate::config::file::{
    DnsTargetKeys, FileTargetKeys, PrometheusTargetKeys, ReplicaBoundKeys, ScaleTarget, TargetKeys,
    VariantKeys,
};
use crate::config::names;
use crate::config::resolve::prometheus::matched_labels;
use crate::config::resolve::scrape::{self, ResolvedScrape};
use plimsoll_core::fleet::{
    Accelerator, Bounds, ModelName, Namespace, VariantKey, VariantName, VariantSpec,
};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Replicas;

/// The kinds of Kubernetes' own group `apps` whose replicas can be scaled.
const SCALABLE: [&str; 3] = ["Deployment", "StatefulSet", "ReplicaSet"];

/// The claimed objects, and the path that claims each.
type Claims = BTreeMap<String, String>;

/// The context of the variants.
#[derive(Clone, Copy)]
pub(crate) struct VariantContext<'a> {
    /// The default scrape settings.
    pub(crate) global: &'a ResolvedScrape,
    /// True if there is a cluster that they can refer to.
    pub(crate) cluster: bool,
    /// True if more variants are discovered in it.
    pub(crate) discovery: bool,
    /// True if there is a Prometheus.
    pub(crate) prometheus: bool,
}

/// Resolves the valid variants, each with all of its keys; all others have a problem.
pub(crate) fn resolve(
    written: Option<&[Option<Written<VariantKeys>>]>,
    around: VariantContext<'_>,
    checks: &mut Checks<'_>,
) -> Vec<(VariantKeys, VariantConfig)> {
    let list = written.unwrap_or_default();
    if list.is_empty() && !around.discovery {
        let rule = "is empty: add a variant, or set kubernetes.discovery";
        checks.problems.missing("variants", rule);
    }

    let mut claims = Claims::new();
    let mut variants = Vec::new();
    for (at, variant) in list.iter().enumerate() {
        let Some(written) = variant else { continue };
        let one = WrittenVariant { path: format!("variants[{at}]"), written, around };
        variants.extend(one.resolve(&mut claims, checks));
    }

    variants
}

/// One variant as written, and its path.
struct WrittenVariant<'a> {
    path: String,
    written: &'a Written<VariantKeys>,
    around: VariantContext<'a>,
}

impl WrittenVariant<'_> {
    /// Resolves everything before giving up on anything, so that all problems are found.
    fn resolve(
        &self,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<(VariantKeys, VariantConfig)> {
        let written = self.written;
        let global = self.around.global;
        // The scrape settings of a variant are merged over the global section.
        let usual = VariantKeys { scrape: global.keys.clone(), ..VariantKeys::default() };
        let mut keys =
            settings::resolve_over(Some(written), &usual, &self.path, &mut checks.problems);

        let aliases = self.aliases(&keys.model, checks);
        let bounds = self.bounds(keys.replicas, checks);
        let overlaid = written.scrape.clone().unwrap_or_default();
        let ResolvedScrape { keys: _, scrape } =
            scrape::overlay(&self.at("scrape"), global, &overlaid, checks);

        let is_refused = checks.problems.refused(&self.at("namespace"));
        let namespace = Some(&keys.namespace).filter(|_| !is_refused);
        let port = scrape.endpoint.port;
        let listing = VariantListing { one: self, namespace: namespace.map(String::as_str), port };
        let targets = listing.resolve(written.targets.as_ref(), &mut keys.targets, claims, checks);
        let read_by = self.read_by(keys.source, targets.as_ref(), checks);

        let key = VariantKey {
            namespace: Namespace::new(namespace?)?,
            variant: VariantName::new(&keys.name)?,
        };
        claim(format!("the name {key}"), &self.at("name"), claims, checks);
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
        let ScrapeDefaults { endpoint, settings: scrape } = scrape;
        Some((keys, VariantConfig { spec, aliases, targets: targets?, endpoint, scrape, read_by }))
    }

    /// The reader of the replicas' metrics: Prometheus if there is one, unless the variant sets
    /// another.
    fn read_by(
        &self,
        written: Option<ReadBy>,
        targets: Option<&VariantTargets>,
        checks: &mut Checks<'_>,
    ) -> ReadBy {
        let found_there = matches!(targets, Some(VariantTargets::Prometheus(_)));
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
                checks.problems.warning(path, "is already a name of the model");
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

/// A variant's replica list, and the context for resolving it.
struct VariantListing<'a> {
    one: &'a WrittenVariant<'a>,
    namespace: Option<&'a str>,
    port: u16,
}

impl VariantListing<'_> {
    fn resolve(
        &self,
        written: Option<&Written<TargetKeys>>,
        keys: &mut TargetKeys,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<VariantTargets> {
        let path = self.one.at("targets");
        let own = written.cloned().unwrap_or_default();
        let mut all: Vec<(&str, Option<VariantTargets>)> = Vec::new();
        if let Some(written) = own.addresses {
            let addresses = self.addresses(&written, claims, checks);
            keys.addresses = Some(addresses.clone());
            all.push(("static", Some(VariantTargets::Listed(TargetSource::Static(addresses)))));
        }
        if let Some((written, keys)) = own.file.zip(keys.file.as_ref()) {
            all.push((
                "file",
                Some(VariantTargets::Listed(self.files(written, keys, claims, checks))),
            ));
        }
        if let Some((written, keys)) = own.dns.zip(keys.dns.as_mut()) {
            all.push((
                "dns",
                Some(VariantTargets::Listed(self.names(written, keys, claims, checks))),
            ));
        }
        if let Some(target) = &keys.scale_target {
            all.push(("scale_target", self.scale_target(target, claims, checks)));
        }
        if let Some(written) = own.selector {
            all.push(("selector", self.selector(written, claims, checks)));
        }
        if let Some(written) = own.prometheus {
            all.push(("prometheus", self.matched(written, claims, checks)));
        }

        let rule = "must have exactly one of static, file, dns, scale_target, selector and \
                    prometheus";
        match all.len() {
            1 => return all.pop().and_then(|(_, targets)| targets),
            // A key that cannot be read has been removed, and its problem is noted already.
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
                let rule = "must be HOST:PORT or HOST, with a port from 1 to 65535; scheme and path belong in \
                            scrape";
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
    ) -> TargetSource {
        let path = self.at("file");
        let paths_path = join(&path, "paths");
        let files = written.paths.unwrap_or_default();
        if files.is_empty() {
            checks.problems.missing(&paths_path, "must have at least one file");
        }
        for (at, file) in files.iter().enumerate() {
            let path = format!("{paths_path}[{at}]");
            let Some(file) = checks.file_later(&path, file.as_ref()) else { continue };
            claim(format!("the file {}", file.display()), &path, claims, checks);
        }

        TargetSource::File { paths: keys.paths.clone(), refresh: keys.refresh }
    }

    fn names(
        &self,
        written: Written<DnsTargetKeys>,
        keys: &mut DnsTargetKeys,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> TargetSource {
        let path = self.at("dns");
        let DnsTargetKeys { record, refresh, .. } = *keys;
        let names_path = join(&path, "names");
        let port_path = join(&path, "port");
        let port = match (record, written.port) {
            (Record::Srv, Some(found)) => {
                checks.problems.error(port_path, "must be absent: SRV records have one", found);
                None
            }
            (Record::Srv, None) => None,
            (Record::A | Record::Aaaa, _) => keys.port.or(Some(self.port)),
        };

        keys.port = port;
        let suffix = port.map(|port| format!(":{port}")).unwrap_or_default();
        let names = written.names.unwrap_or_default();
        if names.is_empty() {
            checks.problems.missing(&names_path, "must have at least one name");
        }
        for (at, name) in names.iter().enumerate() {
            let path = format!("{names_path}[{at}]");
            let valid = name.as_deref().filter(|_| !checks.problems.refused(&path));
            let Some(name) = valid else { continue };
            claim(format!("the DNS name {name}{suffix}"), &path, claims, checks);
        }

        TargetSource::Dns { names: keys.names.clone(), record, port, refresh }
    }

    fn scale_target(
        &self,
        target: &ScaleTarget,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<VariantTargets> {
        let path = self.at("scale_target");
        let is_refused = checks.problems.refused_below(&path);
        self.needs_cluster(&path, checks);
        let namespace = self.namespace.filter(|_| !is_refused)?;

        if target.api_version.starts_with("apps/") && !SCALABLE.contains(&target.kind.as_str()) {
            let rule = format!("of the group apps must be {}", SCALABLE.join(", "));
            checks.problems.error(join(&path, "kind"), rule, format!("{:?}", target.kind));
        }
        // Versions of one group are views of the same objects.
        let kind = match target.api_version.split_once('/') {
            Some((group, _)) if !group.is_empty() => format!("{}.{group}", target.kind),
            Some(_) | None => target.kind.clone(),
        };
        let what = format!("the scale target {kind} {namespace}/{}", target.name);
        claim(what, &path, claims, checks);
        Some(VariantTargets::ScaleTarget(target.clone()))
    }

    fn selector(
        &self,
        written: String,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<VariantTargets> {
        let path = self.at("selector");
        self.needs_cluster(&path, checks);
        let rule = "must be a label selector, such as \"app=llama,tier in (gold, silver)\"";
        checks.text(&path, Some(&written), names::is_selector, rule)?;
        let namespace = self.namespace?;
        claim(format!("the pods of {written} in {namespace}"), &path, claims, checks);
        Some(VariantTargets::Selector(written))
    }

    fn matched(
        &self,
        written: Written<PrometheusTargetKeys>,
        claims: &mut Claims,
        checks: &mut Checks<'_>,
    ) -> Option<VariantTargets> {
        let path = self.at("prometheus");
        if !self.one.around.prometheus {
            checks.problems.error_at(&path, "needs the section prometheus, with the url of one");
        }

        let match_path = join(&path, "match");
        let matchers = written.labels.unwrap_or_default();
        if matchers.is_empty() {
            let rule = "must have at least one label, such as {job: vllm}";
            checks.problems.missing(&match_path, rule);
        }

        let labels = matched_labels(&match_path, &matchers, checks);
        if labels.is_empty() {
            return None;
        }

        let pairs: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        claim(format!("the series with {}", pairs.join(", ")), &match_path, claims, checks);
        Some(VariantTargets::Prometheus(labels))
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

/// Notes that a path claims an object, and rejects it if another path has claimed the object. Two
/// variants with the same replicas would both count them.
fn claim(what: String, path: &str, claims: &mut Claims, checks: &mut Checks<'_>) {
    match claims.get(&what) {
        Some(other) => {
            checks.problems.error_at(path, format!("claims {what}, which {other} also claims"));
        }
        None => {
            claims.insert(what, path.to_owned());
        }
    }
}
