{{- define "fairlead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "fairlead.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "fairlead.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fairlead.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The labels of an object in the release, as (list $), or (list $ "router") for a component's. */}}
{{- define "fairlead.labels" -}}
{{- $root := index . 0 }}
{{- $own := dict
  "app.kubernetes.io/name" (include "fairlead.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")
}}
{{- if gt (len .) 1 }}
{{- $_ := set $own "app.kubernetes.io/component" (index . 1) }}
{{- end }}
{{- merge $own $root.Values.commonLabels | toYaml }}
{{- end }}

{{/* The selector of a component, as (list $ "router"). It must never change, since selectors are immutable. */}}
{{- define "fairlead.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "fairlead.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The name of a component's object, as (list $ "router"), or (list $ "router" "peers") for NAME-router-peers. */}}
{{- define "fairlead.componentName" -}}
{{- include "fairlead.fullname" (index . 0) }}-{{ rest . | join "-" }}
{{- end }}

{{/* The name of an object without a namespace, as for its name: a release of another namespace may have the same name. */}}
{{- define "fairlead.clusterWideName" -}}
{{- include "fairlead.componentName" . }}-{{ (index . 0).Release.Namespace }}
{{- end }}

{{/* The metadata of a component's object, as for its name. */}}
{{- define "fairlead.metadata" -}}
name: {{ include "fairlead.componentName" . }}
namespace: {{ (index . 0).Release.Namespace }}
labels: {{- include "fairlead.labels" . | nindent 2 }}
{{- end }}

{{/* The name of the account of a component, as (list $ "router"). */}}
{{- define "fairlead.serviceAccountName" -}}
{{- $account := (index (index . 0).Values (index . 1)).serviceAccount }}
{{- $account.name | default (include "fairlead.componentName" .) }}
{{- end }}
