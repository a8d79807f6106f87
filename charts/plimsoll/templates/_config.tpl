{{/*
The daemon's configuration: that of the values, and over it what only the chart knows. The schema of
the values refuses the keys that are set here.
*/}}
{{- define "plimsoll.config" -}}
{{- include "plimsoll.checkSections" . -}}
{{- include "plimsoll.checkPorts" . -}}
{{- $variants := include "plimsoll.variants" . | fromJsonArray -}}
{{- if not (or $variants (include "plimsoll.discovers" .)) -}}
{{- fail "config.variants: there must be at least one variant, or config.kubernetes.discovery.enabled; values.yaml has one as a comment, and docs/configuration.md the keys" -}}
{{- end -}}
{{- include "plimsoll.checkDurations" . -}}
{{- if and .Values.state.volume (include "plimsoll.elects" .) -}}
{{- fail "state.volume: leader election keeps decisions in a ConfigMap, so no state file is written; remove state.volume, or set leaderElection.enabled=false with one replica" -}}
{{- end -}}
{{- $own := dict
  "server" (dict "listen" (printf "%s:%v" (include "plimsoll.listenAddress" .) .Values.httpPort))
  "kubernetes" (dict "enabled" true) -}}
{{- if include "plimsoll.elects" . -}}
{{- $election := dict "enabled" true "namespace" .Release.Namespace "name" (include "plimsoll.fullname" .) -}}
{{- $_ := set $own.kubernetes "leader_election" $election -}}
{{- end -}}
{{- if and (include "plimsoll.discovers" .) .Values.rbac.namespaces (not (dig "kubernetes" "discovery" "namespaces" list .Values.config)) -}}
{{- $_ := set $own.kubernetes "discovery" (dict "namespaces" .Values.rbac.namespaces) -}}
{{- end -}}
{{- if .Values.externalMetrics.enabled -}}
{{- $tls := dict "cert_file" "/tls/tls.crt" "key_file" "/tls/tls.key" -}}
{{- if eq .Values.tls.mode "certManager" -}}
{{- $_ := set $tls "ca_file" "/tls/ca.crt" -}}
{{- else if eq .Values.tls.mode "selfManaged" -}}
{{- $own := dict
  "secret" (include "plimsoll.tlsSecret" .)
  "service" (include "plimsoll.fullname" .)
  "namespace" .Release.Namespace
  "leaf_lifetime" .Values.tls.selfManaged.leafLifetime
  "ca_lifetime" .Values.tls.selfManaged.caLifetime -}}
{{- $tls = dict "self_managed" $own -}}
{{- end -}}
{{- $served := dict
  "enabled" true
  "listen" (printf "%s:%s" (include "plimsoll.listenAddress" .) (include "plimsoll.apiPort" .))
  "object_metrics" .Values.externalMetrics.objectMetrics.enabled
  "tls" $tls -}}
{{- $_ := set $own "external_metrics" $served -}}
{{- else -}}
{{- $_ := set $own "external_metrics" (dict "enabled" false) -}}
{{- end -}}
{{- with .Values.externalScaler -}}
{{- $scaler := dict "enabled" .enabled -}}
{{- if .enabled -}}
{{- $_ := set $scaler "listen" (printf "%s:%v" (include "plimsoll.listenAddress" $) .port) -}}
{{- if .tls.secretName -}}
{{- $tls := dict "cert_file" "/scaler-tls/tls.crt" "key_file" "/scaler-tls/tls.key" -}}
{{- if .tls.clientCaSecretName -}}
{{- $_ := set $tls "client_ca_file" "/scaler-clients/ca.crt" -}}
{{- end -}}
{{- $_ := set $scaler "tls" $tls -}}
{{- else if .tls.clientCaSecretName -}}
{{- fail "externalScaler.tls.clientCaSecretName: needs externalScaler.tls.secretName, because clients show certificates over TLS only" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $own "external_scaler" $scaler -}}
{{- end -}}
{{- if include "plimsoll.keepsState" . -}}
{{- $_ := set $own "state_file" "/var/lib/plimsoll/state.json" -}}
{{- end -}}
{{- $_ := set $own "variants" $variants -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $own) -}}
{{- end -}}

{{/*
The variants as a JSON list. Of a mapping, the key is the name of a variant without one.
*/}}
{{- define "plimsoll.variants" -}}
{{- $variants := .Values.config.variants | default list -}}
{{- if kindIs "map" $variants -}}
{{- $list := list -}}
{{- range $name := keys $variants | sortAlpha -}}
{{- with get $variants $name -}}
{{- $list = append $list (merge (deepCopy .) (dict "name" $name)) -}}
{{- end -}}
{{- end -}}
{{- $variants = $list -}}
{{- end -}}
{{- toJson $variants -}}
{{- end -}}

{{/*
The keys that the daemon cannot change while it runs: it refuses a new file that differs in one. So
their hash is on the pods, which a change restarts. Everything else is loaded by the running daemon.
*/}}
{{- define "plimsoll.fixedConfig" -}}
{{- $config := fromYaml (include "plimsoll.config" .) -}}
{{- $fixed := dict -}}
{{- range list "server" "external_metrics" "external_scaler" "shutdown" "kubernetes" "compatibility" "prometheus" "trace" -}}
{{- $_ := set $fixed . (get $config .) -}}
{{- end -}}
{{- $_ := set $fixed "kubernetes" (omit $fixed.kubernetes "discovery") -}}
{{- $_ := set $fixed "scrape.concurrency" (dig "scrape" "concurrency" "" $config) -}}
{{- toJson $fixed -}}
{{- end -}}

{{/* Whether variants are found by annotations. */}}
{{- define "plimsoll.discovers" -}}
{{- with .Values.config.kubernetes -}}{{- with .discovery -}}{{- if .enabled -}}true{{- end -}}{{- end -}}{{- end -}}
{{- end -}}

{{/*
The namespaces that it may see, as a JSON list; empty for all. Without rbac.namespaces, they are those
of the variants, and with discovery those that it is limited to. An environment variable may give a
variant that the values lack, so one without a namespace is taken for any.
*/}}
{{- define "plimsoll.namespaces" -}}
{{- if and .Values.rbac.namespaces .Values.rbac.clusterWide -}}
{{- fail "rbac.clusterWide: it binds the role in all namespaces; remove rbac.namespaces, or set clusterWide to false" -}}
{{- end -}}
{{- $found := .Values.rbac.namespaces | default list -}}
{{- if not (or $found .Values.rbac.clusterWide) -}}
{{- $discovered := dig "kubernetes" "discovery" "namespaces" list .Values.config | default list -}}
{{- $limited := or (not (include "plimsoll.discovers" .)) $discovered -}}
{{- if $limited -}}
{{- $found = $discovered -}}
{{- range include "plimsoll.variants" . | fromJsonArray -}}
{{- $found = append $found (.namespace | default "") -}}
{{- end -}}
{{- if has "" $found -}}{{- $found = list -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Whether a pool has its copies from the Models of Seldon Core 2. */}}
{{- define "plimsoll.hostsSeldon" -}}
{{- range .Values.config.pools -}}{{- if . -}}{{- if eq (.source | default "") "seldon" -}}true{{- end -}}{{- end -}}{{- end -}}
{{- end -}}

{{/* Whether Plimsoll asks the API server what a caller may read. */}}
{{- define "plimsoll.reviews" -}}
{{- $authorization := dig "external_metrics" "authorization" "" .Values.config | default "" -}}
{{- if and .Values.externalMetrics.enabled (ne $authorization "trust_front_proxy") -}}true{{- end -}}
{{- end -}}

{{/* Whether one of several replicas decides. */}}
{{- define "plimsoll.elects" -}}
{{- if or .Values.leaderElection.enabled (gt (int .Values.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{/* Whether there is a state file: with leader election, decisions are in a ConfigMap. */}}
{{- define "plimsoll.keepsState" -}}
{{- if and .Values.state.enabled (not (include "plimsoll.elects" .)) -}}true{{- end -}}
{{- end -}}

{{/* The address that all servers listen on, as it precedes a port. */}}
{{- define "plimsoll.listenAddress" -}}
{{- $address := .Values.listenAddress -}}
{{- if contains ":" $address -}}[{{ $address }}]{{- else -}}{{ $address }}{{- end -}}
{{- end -}}

{{/* Fails if two servers of the pod would have the same port. */}}
{{- define "plimsoll.checkPorts" -}}
{{- $http := int .Values.httpPort -}}
{{- $api := ternary (include "plimsoll.apiPort" . | int) 0 .Values.externalMetrics.enabled -}}
{{- $scaler := 0 -}}
{{- with .Values.externalScaler -}}
{{- $scaler = ternary (int .port) 0 .enabled -}}
{{- end -}}
{{- if eq $http $api -}}
{{- fail (printf "httpPort: %d is the port of the external metrics API too (externalMetrics.port); take another" $http) -}}
{{- end -}}
{{- range $key, $port := dict "httpPort" $http "externalMetrics.port" $api -}}
{{- if and $scaler (eq $port $scaler) -}}
{{- fail (printf "externalScaler.port: %d is %s too; take another" $scaler $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The port of the external metrics API. With hostNetwork it is a port of the node: 6443 is the API
server's on nodes of the control plane, and the kubelet and kube-proxy have theirs on every node.
*/}}
{{- define "plimsoll.apiPort" -}}
{{- $port := .Values.externalMetrics.port | default (ternary 10443 6443 .Values.hostNetwork) | int -}}
{{- if and .Values.hostNetwork (has $port (list 10248 10249 10250 10256)) -}}
{{- fail (printf "externalMetrics.port: %d is a port of the kubelet or kube-proxy on every node, and with hostNetwork the pod listens on its node; leave it out for 10443, or take another" $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}
