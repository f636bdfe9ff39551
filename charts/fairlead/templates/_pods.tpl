{{- define "fairlead.image" -}}
{{- with .Values.image }}
{{- $repository := .repository | required "image.repository is not set, and no image of Fairlead is published: build one with `make image`, bring it to the nodes, and set its name" }}
{{- if .digest }}{{ $repository }}@{{ .digest }}{{ else }}{{ $repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The labels of a component's pods, as (list $ "router"). No version of the chart is in them: it would restart them. */}}
{{- define "fairlead.podLabels" -}}
{{- $values := index (index . 0).Values (index . 1) }}
{{- merge (include "fairlead.selector" . | fromYaml) (index . 0).Values.commonLabels $values.podLabels | toYaml }}
{{- end }}

{{/* The annotations of a component's pods, as (list $ "router"). The cluster autoscaler may remove their nodes: the volume `tmp` holds nothing to keep. */}}
{{- define "fairlead.podAnnotations" -}}
{{- $scratch := dict "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" "tmp" }}
{{- merge (deepCopy (index (index . 0).Values (index . 1)).podAnnotations) $scratch | toYaml }}
{{- end }}

{{/* The account, the security context and the placement of a component's pods, as (list $ "router"). */}}
{{- define "fairlead.podSettings" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "fairlead.serviceAccountName" . }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "fairlead.placement" . }}
{{ . }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
{{- /* Pods of each ReplicaSet are spread by themselves, or those of an update count those that they replace. */}}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "fairlead.selector" $ | fromYaml)) "matchLabelKeys" (list "pod-template-hash") }}
topologySpreadConstraints:
{{- range . }}
  - {{- ternary . (merge (deepCopy .) $own) (hasKey . "labelSelector") | toYaml | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The priority of a component's pods and the nodes on which they may run, as (list $ "router"), without affinity. */}}
{{- define "fairlead.placement" -}}
{{- $placement := pick (index (index . 0).Values (index . 1)) "priorityClassName" "nodeSelector" "tolerations" }}
{{- range $field, $value := $placement }}
{{- if not $value }}{{ $_ := unset $placement $field }}{{ end }}
{{- end }}
{{- with $placement }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The image, the security context, the variables and the resources of a component's container, as (list $ "router"). */}}
{{- define "fairlead.containerSettings" -}}
{{- $root := index . 0 }}
{{- $values := index $root.Values (index . 1) -}}
image: {{ include "fairlead.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $root.Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
