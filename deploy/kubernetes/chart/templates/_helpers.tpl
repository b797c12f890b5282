{{- define "sandbox.name" -}}
{{- if contains "agent-sandbox" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-agent-sandbox" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sandbox.boxes" -}}
{{- .Values.boxes.namespace | default (printf "%s-boxes" .Release.Namespace) }}
{{- end }}

{{- define "sandbox.selector" -}}
app.kubernetes.io/name: agent-sandbox
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandbox.labels" -}}
{{ include "sandbox.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sandbox.priorityClass" -}}
{{- if .Values.priorityClass.create }}{{ .Values.priorityClass.name | default (include "sandbox.name" .) }}{{ else }}{{ .Values.priorityClass.name }}{{ end }}
{{- end }}

{{- define "sandbox.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sandbox.priorityClass" . }}
priorityClassName: {{ . }}
{{- end }}
enableServiceLinks: false
{{- end }}

{{- define "sandbox.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "sandbox.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What coordinators and workers are told alike. */}}
{{- define "sandbox.env" -}}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.secretName }}, key: redis-password}
- name: SANDBOX_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "sandbox.name" . }}-redis:6379/0
{{- else }}
- name: SANDBOX_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.secretName }}, key: redis-url}
{{- end }}
- name: SANDBOX_FLEET_KEY
  valueFrom:
    secretKeyRef: {name: {{ .Values.secretName }}, key: fleet-key}
- name: SANDBOX_METRICS_PORT
  value: "9464"
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "sandbox.settings" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Pods of one part on different nodes, where there are several. */}}
{{- define "sandbox.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
{{- end }}
