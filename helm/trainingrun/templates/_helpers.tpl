{{/*
Names and pieces that both programs share. Everything is named after the release: <release>-controller and
<release>-membership; the program makes <release>-membership-ca itself.
*/}}

{{/* The release's name, which must leave room in the name of a Service. */}}
{{- define "trainingrun.release" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" .Release.Name) -}}
{{- fail (printf "release name %q cannot name a Service: use at most 40 lower-case letters, digits and '-', beginning with a letter" .Release.Name) -}}
{{- end -}}
{{- .Release.Name -}}
{{- end -}}

{{- define "trainingrun.controller" -}}{{ include "trainingrun.release" . }}-controller{{- end -}}
{{- define "trainingrun.membership" -}}{{ include "trainingrun.release" . }}-membership{{- end -}}
{{- define "trainingrun.membershipCA" -}}{{ include "trainingrun.membership" . }}-ca{{- end -}}

{{/* Cluster-scoped objects carry the namespace, so that two releases of one name never share one. */}}
{{- define "trainingrun.clusterName" -}}trainingrun:{{ .Release.Namespace }}:{{ include "trainingrun.release" . }}{{- end -}}

{{- define "trainingrun.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* What selects one program's pods. Never changes: selectors of a Deployment are immutable. */}}
{{- define "trainingrun.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* repository:tag or repository@digest. There is no default: an image that nobody publishes may be anybody's. */}}
{{- define "trainingrun.image" -}}
{{- if not .image.repository -}}
{{- fail "set image.repository and trainer.image.repository: no images are published; docs/operations.md says how to build them" -}}
{{- end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Settings of both programs: one class reads them. */}}
{{- define "trainingrun.environment" -}}
- {name: TRAININGRUN_OPERATOR_NAMESPACE, value: {{ .Release.Namespace | quote }}}
- {name: TRAININGRUN_WATCH_NAMESPACES, value: {{ join "," .Values.watchNamespaces | quote }}}
- {name: TRAININGRUN_TRAINER_IMAGE, value: {{ include "trainingrun.image" (dict "root" . "image" .Values.trainer.image) | quote }}}
- {name: TRAININGRUN_TRAINER_IMAGE_PULL_POLICY, value: {{ .Values.trainer.image.pullPolicy | quote }}}
- {name: TRAININGRUN_MEMBERSHIP_NAME, value: {{ include "trainingrun.membership" . | quote }}}
- {name: TRAININGRUN_MEMBERSHIP_PORT, value: "8443"}
- {name: TRAININGRUN_CONTROLLER_ACCOUNT, value: {{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "trainingrun.controller" .) | quote }}}
- {name: TRAININGRUN_HEALTH_PORT, value: "8081"}
- {name: TRAININGRUN_METRICS_PORT, value: "8080"}
- {name: TRAININGRUN_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
- {name: TRAININGRUN_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
{{- range $name, $seconds := .Values.times }}
- {name: TRAININGRUN_{{ $name | snakecase | upper }}, value: {{ $seconds | quote }}}
{{- end }}
{{- end -}}

{{/* A program that is stuck is restarted after a minute; one that cannot work now is only taken out of its Service. */}}
{{- define "trainingrun.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "trainingrun.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "trainingrun.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a program's pod may run. A lost node is left after 15 s; the default of Kubernetes is 5 minutes. */}}
{{- define "trainingrun.scheduling" -}}
tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 15}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 15}
{{- with .tolerations }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
