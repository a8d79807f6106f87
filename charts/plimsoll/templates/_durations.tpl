{{/* How many milliseconds a duration is that is written as 1h30m. */}}
{{- define "plimsoll.milliseconds" -}}
{{- $units := dict "h" 3600000.0 "m" 60000.0 "s" 1000.0 "ms" 1.0 "us" 0.001 "ns" 0.000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(h|ms|us|ns|m|s)" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Fails unless a value is from one duration to another: path, value, least, most. */}}
{{- define "plimsoll.within" -}}
{{- $value := include "plimsoll.milliseconds" (index . 1) | float64 -}}
{{- $least := include "plimsoll.milliseconds" (index . 2) | float64 -}}
{{- $most := include "plimsoll.milliseconds" (index . 3) | float64 -}}
{{- if or (lt $value $least) (gt $value $most) -}}
{{- fail (printf "%s: %s is not from %s to %s" (index . 0) (index . 1) (index . 2) (index . 3)) -}}
{{- end -}}
{{- end -}}

{{/*
What the schema of the values cannot say of durations: how they must stand to each other. The daemon
refuses the same, but would say so only in the log of a pod that does not start.
*/}}
{{- define "plimsoll.checkDurations" -}}
{{- if and .Values.externalMetrics.enabled (eq .Values.tls.mode "selfManaged") -}}
{{- $leaf := .Values.tls.selfManaged.leafLifetime -}}
{{- $ca := .Values.tls.selfManaged.caLifetime -}}
{{- include "plimsoll.within" (list "tls.selfManaged.leafLifetime" $leaf "1m" "876000h") -}}
{{- include "plimsoll.within" (list "tls.selfManaged.caLifetime" $ca "1m" "876000h") -}}
{{- $three := mulf 3.0 (include "plimsoll.milliseconds" $leaf | float64) -}}
{{- if gt $three (include "plimsoll.milliseconds" $ca | float64) -}}
{{- fail (printf "tls.selfManaged.caLifetime: %s is less than three times leafLifetime, which is %s: an authority is replaced when it has a third of its life left, and must outlive every certificate that it signs" $ca $leaf) -}}
{{- end -}}
{{- end -}}
{{- $path := "config.kubernetes.leader_election" -}}
{{- $election := dig "kubernetes" "leader_election" dict .Values.config | default dict -}}
{{- $lease := $election.lease_duration | default "15s" -}}
{{- $deadline := $election.renew_deadline | default "10s" -}}
{{- $retry := $election.retry_period | default "2s" -}}
{{- include "plimsoll.within" (list (printf "%s.lease_duration" $path) $lease "1s" "5m") -}}
{{- include "plimsoll.within" (list (printf "%s.renew_deadline" $path) $deadline "100ms" "5m") -}}
{{- include "plimsoll.within" (list (printf "%s.retry_period" $path) $retry "100ms" "5m") -}}
{{- $limit := include "plimsoll.milliseconds" $deadline | float64 -}}
{{- if ge $limit (include "plimsoll.milliseconds" $lease | float64) -}}
{{- fail (printf "%s.renew_deadline: %s is not shorter than lease_duration, which is %s: a leader must give up before the others take over" $path $deadline $lease) -}}
{{- end -}}
{{- if ge (mulf 1.2 (include "plimsoll.milliseconds" $retry | float64)) $limit -}}
{{- fail (printf "%s.retry_period: %s is not less than five sixths of renew_deadline, which is %s: a leader must have time to try more than once" $path $retry $deadline) -}}
{{- end -}}
{{- end -}}
