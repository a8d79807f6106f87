{{/*
Sections that the templates look into. Helm keeps a null that no default of the chart stands behind,
and the daemon takes it for nothing; a template that looks into it ends with an error of its own.
*/}}
{{- define "plimsoll.checkSections" -}}
{{- range list "kubernetes" "limits" "external_metrics" "scrape" -}}
{{- if and (hasKey $.Values.config .) (kindIs "invalid" (get $.Values.config .)) -}}
{{- fail (printf "config.%s: is null; leave it out for its defaults" .) -}}
{{- end -}}
{{- end -}}
{{- range list "discovery" "leader_election" -}}
{{- $kubernetes := $.Values.config.kubernetes | default dict -}}
{{- if and (hasKey $kubernetes .) (kindIs "invalid" (get $kubernetes .)) -}}
{{- fail (printf "config.kubernetes.%s: is null; leave it out for its defaults" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
