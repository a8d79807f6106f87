{{/* The name of most objects. */}}
{{- define "plimsoll.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of objects without a namespace, which another release may have too. */}}
{{- define "plimsoll.clusterName" -}}
{{- $name := include "plimsoll.fullname" . -}}
{{- if eq $name .Release.Namespace -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace $name -}}
{{- end -}}
{{- end -}}

{{- define "plimsoll.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "plimsoll.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the account to use, because serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The subjects of all bindings. */}}
{{- define "plimsoll.subjects" -}}
- kind: ServiceAccount
  name: {{ include "plimsoll.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* What tells our pods from others; it can never change for a Deployment. */}}
{{- define "plimsoll.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "plimsoll.labels" -}}
{{ include "plimsoll.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Labels of the pod of `helm test`. Services, budgets and policies select the daemon's pods by others.
*/}}
{{- define "plimsoll.testSelector" -}}
app.kubernetes.io/part-of: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{/*
Name, annotations and labels of an object, from a list: the context, the name, the annotations. The
labels are last, so that a template can go on with its own.
*/}}
{{- define "plimsoll.metadata" -}}
{{- $ := index . 0 -}}
name: {{ index . 1 }}
{{- with merge (dict) (index . 2) $.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- include "plimsoll.labels" $ | nindent 2 }}
{{- end -}}

{{/*
The security context of pods. OpenShift assigns the user and the groups of a pod from those of its
namespace, and refuses others.
*/}}
{{- define "plimsoll.podSecurity" -}}
{{- $context := .Values.podSecurityContext -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "plimsoll.image" -}}
{{- $repository := required "image.repository: no image is published, so name the one that you have built (docs/install.md says how)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/*
The Secret with the certificate. Each mode has one of its own, so that after a change of the mode none
finds what another has left.
*/}}
{{- define "plimsoll.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- required "tls.secret.name: name the Secret with the certificate, because tls.mode is secret" .Values.tls.secret.name -}}
{{- else -}}
{{- include "plimsoll.fullname" . }}-{{ ternary "certificate" "tls" (eq .Values.tls.mode "selfManaged") }}
{{- end -}}
{{- end -}}

{{/* A number of replicas, or a percentage of them, rounded up as Kubernetes does. */}}
{{- define "plimsoll.share" -}}
{{- $written := toString (index . 0) -}}
{{- if hasSuffix "%" $written -}}
{{- ceil (divf (mulf (trimSuffix "%" $written | float64) (index . 1)) 100) -}}
{{- else -}}
{{- int $written -}}
{{- end -}}
{{- end -}}
