{{/*
headgate.toml: what the chart says, and over it `settings` of the values.

  (dict "root" . "part" .Values.agent "own" (dict …))  ->  TOML
*/}}
{{- define "headgate.settings" -}}
{{- $all := mustMergeOverwrite (deepCopy .own) (deepCopy .part.settings) -}}
{{- include "headgate.toml" (dict "table" $all "path" "") | trim -}}
{{- end -}}

{{- define "headgate.settings.listen" -}}
{{- $part := .part -}}
{{- $agent := dict "listen" (printf "0.0.0.0:%d" (int $part.port)) "socket" "/run/headgate/headgate.sock" "log" "json" -}}
{{- if $part.tls.secretName -}}
{{- $_ := set $agent "tls_cert" "/etc/headgate/tls/tls.crt" -}}
{{- $_ := set $agent "tls_key" "/etc/headgate/tls/tls.key" -}}
{{- if $part.tls.clientCA -}}
{{- $_ := set $agent "tls_client_ca" "/etc/headgate/tls/ca.crt" -}}
{{- end -}}
{{- else if $part.allowPlaintext -}}
{{- $_ := set $agent "allow_plaintext" true -}}
{{- /* Over plain HTTP the agent rejects names that it does not know: its Service's are its own. */ -}}
{{- $service := printf "%s-%s" (include "headgate.fullname" .root) .name -}}
{{- $here := printf "%s.%s" $service .root.Release.Namespace -}}
{{- $_ := set $agent "hosts" (list $service $here (printf "%s.svc" $here) (printf "%s.svc.cluster.local" $here)) -}}
{{- else -}}
{{- fail (printf "%s.tls.secretName is empty: name a Secret with tls.crt and tls.key, or set %s.allowPlaintext=true if something else protects the way" .name .name) -}}
{{- end -}}
{{- toJson $agent -}}
{{- end -}}

{{- define "headgate.settings.fleet" -}}
{{- $fleet := .Values.fleet -}}
{{- $said := dict "endpoints" $fleet.endpoints "prefix" $fleet.prefix -}}
{{- range tuple "region" "cluster" "username" -}}
{{- if get $fleet . -}}
{{- $_ := set $said . (get $fleet .) -}}
{{- end -}}
{{- end -}}
{{- if $fleet.allowPlaintext -}}
{{- $_ := set $said "allow_plaintext" true -}}
{{- end -}}
{{- if $fleet.username -}}
{{- if not (or $fleet.passwordSecret.name $fleet.passwordSecret.value) -}}
{{- fail "fleet.username needs fleet.passwordSecret.name: the Secret that its password is in" -}}
{{- end -}}
{{- $_ := set $said "password_file" "/etc/headgate/etcd/password" -}}
{{- end -}}
{{- if $fleet.tls.secretName -}}
{{- $_ := set $said "ca" "/etc/headgate/etcd-tls/ca.crt" -}}
{{- if $fleet.tls.clientCertificate -}}
{{- $_ := set $said "cert" "/etc/headgate/etcd-tls/tls.crt" -}}
{{- $_ := set $said "key" "/etc/headgate/etcd-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- toJson $said -}}
{{- end -}}

{{- define "headgate.agent.settings" -}}
{{- $agent := include "headgate.settings.listen" (dict "root" . "part" .Values.agent "name" "agent") | fromJson -}}
{{- $_ := set $agent "state" "/var/lib/headgate/state.db" -}}
{{- $own := dict "agent" $agent -}}
{{- if .Values.fleet.endpoints -}}
{{- $_ := set $own "fleet" (include "headgate.settings.fleet" . | fromJson) -}}
{{- end -}}
{{- $peers := dict -}}
{{- if include "headgate.agent.hasPeerToken" . -}}
{{- $_ := set $peers "token_file" "/etc/headgate/peers/token" -}}
{{- end -}}
{{- if and .Values.agent.tls.secretName .Values.agent.tls.clientCA -}}
{{- $_ := set $peers "ca" "/etc/headgate/tls/ca.crt" -}}
{{- $_ := set $peers "cert" "/etc/headgate/tls/tls.crt" -}}
{{- $_ := set $peers "key" "/etc/headgate/tls/tls.key" -}}
{{- end -}}
{{- if $peers -}}
{{- $_ := set $own "peers" $peers -}}
{{- end -}}
{{- include "headgate.settings" (dict "part" .Values.agent "own" $own) -}}
{{- end -}}

{{- define "headgate.agent.hasPeerToken" -}}
{{- if or .Values.agent.peerTokenSecret.name .Values.agent.peerTokenSecret.value -}}yes{{- end -}}
{{- end -}}

{{- define "headgate.view.settings" -}}
{{- if not .Values.fleet.endpoints -}}
{{- fail "fleet.endpoints is empty: the fleet view reads etcd and nothing else. Say where its members are, or set view.enabled=false" -}}
{{- end -}}
{{- $agent := include "headgate.settings.listen" (dict "root" . "part" .Values.view "name" "view") | fromJson -}}
{{- $fleet := include "headgate.settings.fleet" . | fromJson -}}
{{- $_ := set $fleet "view" true -}}
{{- $_ := set $fleet "register" false -}}
{{- $_ := set $fleet "cache" "/var/lib/headgate/fleet.cache" -}}
{{- include "headgate.settings" (dict "part" .Values.view "own" (dict "agent" $agent "fleet" $fleet)) -}}
{{- end -}}
