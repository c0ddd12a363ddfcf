{{- /* A service account bound to a cluster role of its own: dict of "name", "namespace" and "rules". */ -}}
{{- define "account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
rules: {{ .rules | toYaml | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .namespace }}
{{- end -}}

{{- /* A DaemonSet: dict of "name", "namespace", "container", "image", "resources" and "pod", the rest of the
pod's spec. */ -}}
{{- define "daemons" -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
spec:
  selector:
    matchLabels:
      app: {{ .name }}
  template:
    metadata:
      labels:
        app: {{ .name }}
    spec:
      {{- with .pod }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      containers:
        - name: {{ default "main" .container }}
          image: {{ .image | quote }}
          resources: {{ default dict .resources | toYaml | nindent 12 }}
{{- end -}}

{{- /* Affinity to nodes one of whose labels (dict "keys", "values") has one of the values. */ -}}
{{- define "on" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .keys }}
      - matchExpressions:
          - key: {{ . }}
            operator: In
            values: {{ $.values | toYaml | nindent 14 }}
      {{- end }}
{{- end -}}
