{{- define "headgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40: pods of the view are named after it, and an agent's name has at most 63. */}}
{{- define "headgate.fullname" -}}
{{- $name := include "headgate.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "headgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "headgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "headgate.view.selector" -}}
app.kubernetes.io/name: {{ include "headgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: view
{{- end -}}

{{- define "headgate.view.serviceAccount" -}}
{{- $account := .Values.view.serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-view" (include "headgate.fullname" .)) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{- define "headgate.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* Secrets that the chart makes, or that are there. */}}
{{- define "headgate.fleet.passwordSecret" -}}
{{- default (printf "%s-etcd" (include "headgate.fullname" .)) .Values.fleet.passwordSecret.name -}}
{{- end -}}

{{- define "headgate.agent.peerTokenSecret" -}}
{{- default (printf "%s-peers" (include "headgate.fullname" .)) .Values.agent.peerTokenSecret.name -}}
{{- end -}}

{{/* Which Secret headgate.toml is in, or which ConfigMap: a volume's source. */}}
{{- define "headgate.settings.source" -}}
{{- if eq .root.Values.settingsIn "Secret" -}}
secret:
  secretName: {{ .name }}
{{- else -}}
configMap:
  name: {{ .name }}
{{- end -}}
{{- end -}}

{{/* headgate.toml, in a ConfigMap or a Secret.  (dict "root" . "name" … "toml" … "component" …) */}}
{{- define "headgate.settings.object" -}}
apiVersion: v1
kind: {{ .root.Values.settingsIn }}
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "headgate.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
{{ eq .root.Values.settingsIn "Secret" | ternary "stringData" "data" }}:
  headgate.toml: |
    {{- .toml | nindent 4 }}
{{- end -}}
