{{/*
Rights of both programs: what their code calls and nothing else. README.md shows them as a table.
The pieces below are given in every namespace, or with watchNamespaces only in those.
*/}}

{{- define "trainingrun.controllerRules" -}}
- apiGroups: [trainingrun.dev]
  resources: [trainingruns]
  verbs: [get, list, watch]
- apiGroups: [trainingrun.dev]
  resources: [trainingruns/status]
  verbs: [update]
# Owner references that block deletion need this where that admission plugin is on.
- apiGroups: [trainingrun.dev]
  resources: [trainingruns/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

{{- define "trainingrun.membershipRules" -}}
- apiGroups: [trainingrun.dev]
  resources: [trainingruns]
  verbs: [get, list]
- apiGroups: [trainingrun.dev]
  resources: [trainingruns/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, create]
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
{{- end -}}
