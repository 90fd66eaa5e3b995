{{/* What every container of the chart has: the sidecar and the view. */}}
{{- define "headgate.container.start" -}}
image: {{ include "headgate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [agent, --config, /etc/headgate/settings/headgate.toml]
{{- end -}}

{{- define "headgate.probe" -}}
httpGet:
  path: {{ .path }}
  port: headgate
  scheme: {{ ternary "HTTPS" "HTTP" (ne .part.tls.secretName "") }}
{{- end -}}

{{/* For `kubectl exec … -- headgate status`: the command line uses the agent of its container. */}}
{{- define "headgate.env.pod" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HEADGATE_NAME
  value: $(POD_NAME)
- name: HEADGATE_URL
  value: unix:///run/headgate/headgate.sock
{{- end -}}

{{/* (dict "root" . "part" .Values.view) */}}
{{- define "headgate.mounts.secrets" -}}
{{- $fleet := .root.Values.fleet -}}
{{- if .part.tls.secretName }}
- {name: headgate-tls, mountPath: /etc/headgate/tls, readOnly: true}
{{- end }}
{{- if and $fleet.endpoints $fleet.username }}
- {name: headgate-etcd, mountPath: /etc/headgate/etcd, readOnly: true}
{{- end }}
{{- if and $fleet.endpoints $fleet.tls.secretName }}
- {name: headgate-etcd-tls, mountPath: /etc/headgate/etcd-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* (dict "root" . "part" .Values.view "mode" 288) */}}
{{- define "headgate.volumes.secrets" -}}
{{- $fleet := .root.Values.fleet -}}
{{- if .part.tls.secretName }}
- name: headgate-tls
  secret:
    secretName: {{ .part.tls.secretName }}
    defaultMode: {{ .mode }}
{{- end }}
{{- if and $fleet.endpoints $fleet.username }}
- name: headgate-etcd
  secret:
    secretName: {{ include "headgate.fleet.passwordSecret" .root }}
    defaultMode: {{ .mode }}
    items:
      - {key: {{ $fleet.passwordSecret.key }}, path: password}
{{- end }}
{{- if and $fleet.endpoints $fleet.tls.secretName }}
- name: headgate-etcd-tls
  secret:
    secretName: {{ $fleet.tls.secretName }}
    defaultMode: {{ .mode }}
{{- end }}
{{- end -}}
