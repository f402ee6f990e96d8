{{- define "turngate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "turngate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "turngate.labels" -}}
{{ include "turngate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* turngate.yaml: the values' `config`, with the addresses that a pod needs. */}}
{{- define "turngate.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $listen := mergeOverwrite (dict) (default dict $config.listen) (dict "host" "0.0.0.0" "port" 8080) }}
{{- if not (or $config.keys $listen.open) }}
{{- fail "no client is asked for a key: set config.keys, or say config.listen.open: true" }}
{{- end }}
{{- $_ := set $config "listen" $listen }}
{{- if .Values.admin.enabled }}
{{- $admin := mergeOverwrite (dict) (default dict $config.admin) (dict "host" "0.0.0.0" "port" (int .Values.admin.port)) }}
{{- if not (or $admin.key $admin.open) }}
{{- fail "anything in the cluster could see what all tenants do: set config.admin.key, or say config.admin.open: true" }}
{{- end }}
{{- $_ := set $config "admin" $admin }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) .Values.persistence.enabled }}
{{- fail "persistence is of one gateway: with replicas above 1 say persistence.enabled: false" }}
{{- end }}
{{- toYaml $config }}
{{- end }}
