{{/*
The agent as a sidecar, for a StatefulSet or Deployment of your own. In a chart that depends on this one:

  containers:
    {{- include "headgate.agent.containers" .Subcharts.headgate | nindent 8 }}
  volumes:
    {{- include "headgate.agent.volumes" .Subcharts.headgate | nindent 8 }}

Nothing else of the pod is touched, and no webhook changes pods behind your back.
*/}}
{{- define "headgate.agent.containers" -}}
{{- $agent := .Values.agent -}}
- name: headgate
  {{- include "headgate.container.start" . | nindent 2 }}
  env:
    {{- include "headgate.env.pod" . | nindent 4 }}
    - name: HEADGATE_ADVERTISE
      value: {{ include "headgate.agent.advertise" . | quote }}
    {{- with $agent.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: headgate, containerPort: {{ $agent.port }}, protocol: TCP}
  # Restarts the agent alone. There is no startupProbe, and no readinessProbe unless it is asked for:
  # while one fails, the pod is not ready, and the database is out of its Service.
  livenessProbe:
    {{- include "headgate.probe" (dict "part" $agent "path" "/healthz") | nindent 4 }}
    initialDelaySeconds: 10
    periodSeconds: 10
    timeoutSeconds: 3
    failureThreshold: 3
  {{- if $agent.readiness }}
  readinessProbe:
    {{- include "headgate.probe" (dict "part" $agent "path" "/readyz") | nindent 4 }}
    periodSeconds: 5
    timeoutSeconds: 3
  {{- end }}
  securityContext:
    {{- toYaml $agent.securityContext | nindent 4 }}
  resources:
    {{- toYaml $agent.resources | nindent 4 }}
  volumeMounts:
    - {name: headgate-settings, mountPath: /etc/headgate/settings, readOnly: true}
    - {name: headgate-run, mountPath: /run/headgate}
    - {name: headgate-tmp, mountPath: /tmp}
    - name: {{ default "headgate-state" $agent.state.volumeName }}
      mountPath: /var/lib/headgate
      {{- with $agent.state.subPath }}
      subPath: {{ . }}
      {{- end }}
    {{- with include "headgate.mounts.secrets" (dict "root" . "part" $agent) | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if include "headgate.agent.hasPeerToken" . }}
    - {name: headgate-peers, mountPath: /etc/headgate/peers, readOnly: true}
    {{- end }}
    {{- range $agent.secrets }}
    - {name: {{ include "headgate.agent.secretVolume" . }}, mountPath: {{ printf "/etc/headgate/secrets/%s" . }}, readOnly: true}
    {{- end }}
    {{- with $agent.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "headgate.agent.advertise" -}}
{{- $scheme := ternary "https" "http" (ne .Values.agent.tls.secretName "") -}}
{{- default (printf "%s://$(POD_IP):%d" $scheme (int .Values.agent.port)) .Values.agent.advertise -}}
{{- end -}}

{{/* Of a Secret's name, which may have dots and more characters than a volume's. */}}
{{- define "headgate.agent.secretVolume" -}}
{{- printf "headgate-secret-%s" (replace "." "-" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Modes let everybody in the pod read: without an fsGroup, files of Secrets are root's. */}}
{{- define "headgate.agent.volumes" -}}
{{- $agent := .Values.agent -}}
- name: headgate-settings
  {{- include "headgate.settings.source" (dict "root" . "name" (printf "%s-agent" (include "headgate.fullname" .))) | nindent 2 }}
- {name: headgate-run, emptyDir: {medium: Memory}}
- {name: headgate-tmp, emptyDir: {medium: Memory}}
{{- if not $agent.state.volumeName }}
- {name: headgate-state, emptyDir: {}}
{{- end }}
{{- with include "headgate.volumes.secrets" (dict "root" . "part" $agent "mode" 292) | trim }}
{{ . }}
{{- end }}
{{- if include "headgate.agent.hasPeerToken" . }}
- name: headgate-peers
  secret:
    secretName: {{ include "headgate.agent.peerTokenSecret" . }}
    items:
      - {key: {{ $agent.peerTokenSecret.key }}, path: token}
{{- end }}
{{- range $agent.secrets }}
- name: {{ include "headgate.agent.secretVolume" . }}
  secret:
    secretName: {{ . }}
{{- end }}
{{- with $agent.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
