{{/*
A map as TOML. Helm's own toToml writes whole numbers as floats, and 8087.0 is no port.

  {{ include "headgate.toml" (dict "table" $map "path" "") }}

First what is written in a line, then tables, then lists of tables: as TOML wants them.
*/}}
{{- define "headgate.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .table }}
{{- if include "headgate.toml.isInline" $value }}
{{ include "headgate.toml.key" $key }} = {{ include "headgate.toml.value" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- $name := include "headgate.toml.key" $key }}
{{- $place := ternary (printf "%s.%s" $path $name) $name (ne $path "") }}
{{- if kindIs "map" $value }}

[{{ $place }}]
{{- include "headgate.toml" (dict "table" $value "path" $place) }}
{{- else if and (kindIs "slice" $value) (not (include "headgate.toml.isInline" $value)) }}
{{- range $value }}

[[{{ $place }}]]
{{- include "headgate.toml" (dict "table" . "path" $place) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* "yes" or nothing. null is nowhere: so a value of the chart is taken back. */}}
{{- define "headgate.toml.isInline" -}}
{{- if kindIs "invalid" . -}}
{{- else if kindIs "map" . -}}
{{- else if kindIs "slice" . -}}
{{- if and . (kindIs "map" (first .)) -}}{{- else -}}yes{{- end -}}
{{- else -}}yes{{- end -}}
{{- end -}}

{{- define "headgate.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}{{ . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{- define "headgate.toml.value" -}}
{{- if kindIs "slice" . -}}
[{{ range $number, $one := . }}{{ if $number }}, {{ end }}{{ include "headgate.toml.value" $one }}{{ end }}]
{{- else if kindIs "map" . -}}
{ {{ range $number, $key := keys . | sortAlpha }}{{ if $number }}, {{ end }}{{ include "headgate.toml.key" $key }} = {{ include "headgate.toml.value" (get $ $key) }}{{ end }} }
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else if eq (float64 .) (floor .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}
