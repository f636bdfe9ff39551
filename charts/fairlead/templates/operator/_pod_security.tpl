{{/*
The Pod Security Standard of engine.podSecurity for a template, as plan/pod/pod_security.py of the operator has it.
*/}}
{{- define "fairlead.podSecurityRules" -}}
{{- if ne .Values.engine.podSecurity "any" }}
- expression: >-
    variables.kept || !variables.pod.?securityContext.?windowsOptions.?hostProcess.orValue(false)
    && variables.containers.all(each, !each.?securityContext.?windowsOptions.?hostProcess.orValue(false))
  message: no pod is a process of a Windows host
- expression: >-
    variables.kept || !variables.pod.?hostNetwork.orValue(false) && !variables.pod.?hostPID.orValue(false)
    && !variables.pod.?hostIPC.orValue(false)
  message: pods have namespaces of their own
- expression: >-
    variables.kept || variables.containers.all(each, !each.?securityContext.?privileged.orValue(false))
  message: no container is privileged
- expression: >-
    variables.kept || variables.containers.all(each, each.?securityContext.?capabilities.?add.orValue([])
    .all(name, name in [
    'AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE',
    'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT']))
  message: containers add only the capabilities of the Pod Security Standard baseline
- expression: >-
    variables.kept || variables.pod.?volumes.orValue([]).all(volume, !has(volume.hostPath))
  message: pods have no hostPath
- expression: >-
    variables.kept || variables.containers.all(each, each.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0))
  message: pods have no ports of their node
- expression: >-
    variables.kept || variables.containers.all(each, [each.?livenessProbe, each.?readinessProbe, each.?startupProbe]
    .all(probe, probe.?httpGet.?host.orValue('') == '' && probe.?tcpSocket.?host.orValue('') == '')
    && [each.?lifecycle.?postStart, each.?lifecycle.?preStop]
    .all(hook, hook.?httpGet.?host.orValue('') == '' && hook.?tcpSocket.?host.orValue('') == ''))
  message: probes and hooks ask their own pod
- expression: >-
    variables.kept || variables.annotations.all(key, !key.startsWith('container.apparmor.security.beta.kubernetes.io/')
    || variables.annotations[key] in ['', 'runtime/default'] || variables.annotations[key].startsWith('localhost/'))
  message: pods keep AppArmor's profile
- expression: >-
    variables.kept
    || variables.pod.?securityContext.?appArmorProfile.?type.orValue('RuntimeDefault') in variables.profiles
    && variables.containers.all(each, each.?securityContext.?appArmorProfile.?type
    .orValue('RuntimeDefault') in variables.profiles)
  message: pods keep AppArmor's profile
- expression: >-
    variables.kept || variables.pod.?securityContext.?seLinuxOptions.?type.orValue('') in variables.seLinuxTypes
    && variables.pod.?securityContext.?seLinuxOptions.?user.orValue('') == ''
    && variables.pod.?securityContext.?seLinuxOptions.?role.orValue('') == ''
    && variables.containers.all(each, each.?securityContext.?seLinuxOptions.?type.orValue('') in variables.seLinuxTypes
    && each.?securityContext.?seLinuxOptions.?user.orValue('') == ''
    && each.?securityContext.?seLinuxOptions.?role.orValue('') == '')
  message: pods have SELinux's types for containers, and no user and role
- expression: >-
    variables.kept || variables.containers.all(each, each.?securityContext.?procMount.orValue('Default') == 'Default')
  message: containers have the default /proc
- expression: >-
    variables.kept
    || variables.pod.?securityContext.?seccompProfile.?type.orValue('RuntimeDefault') in variables.profiles
    && variables.containers.all(each, each.?securityContext.?seccompProfile.?type
    .orValue('RuntimeDefault') in variables.profiles)
  message: pods keep a seccomp profile
- expression: >-
    variables.kept || variables.pod.?securityContext.?sysctls.orValue([]).all(sysctl, sysctl.name in [
    'kernel.shm_rmid_forced', 'net.ipv4.ip_local_port_range', 'net.ipv4.ip_local_reserved_ports',
    'net.ipv4.ip_unprivileged_port_start', 'net.ipv4.ping_group_range', 'net.ipv4.tcp_fin_timeout',
    'net.ipv4.tcp_keepalive_intvl', 'net.ipv4.tcp_keepalive_probes', 'net.ipv4.tcp_keepalive_time',
    'net.ipv4.tcp_rmem', 'net.ipv4.tcp_syncookies', 'net.ipv4.tcp_wmem'])
  message: pods set only the sysctls of the Pod Security Standard baseline
{{- if eq .Values.engine.podSecurity "restricted" }}
- expression: >-
    variables.kept || variables.pod.?volumes.orValue([]).all(volume, has(volume.configMap) || has(volume.csi)
    || has(volume.downwardAPI) || has(volume.emptyDir)
    || has(volume.ephemeral) || has(volume.image) || has(volume.persistentVolumeClaim) || has(volume.projected)
    || has(volume.secret))
  message: pods have only the types of volumes of the Pod Security Standard restricted
- expression: >-
    variables.kept || variables.containers.all(each, !each.?securityContext.?allowPrivilegeEscalation.orValue(true))
  message: no container allows privilege escalation
- expression: >-
    variables.kept || variables.pod.?securityContext.?runAsNonRoot.orValue(true)
    && variables.containers.all(each, each.?securityContext.?runAsNonRoot
    .orValue(variables.pod.?securityContext.?runAsNonRoot.orValue(false)))
  message: containers run as another user than root
- expression: >-
    variables.kept || variables.pod.?securityContext.?runAsUser.orValue(1) != 0
    && variables.containers.all(each, each.?securityContext.?runAsUser.orValue(1) != 0)
  message: containers run as another user than root
- expression: >-
    variables.kept || variables.containers.all(each, each.?securityContext.?seccompProfile.?type
    .orValue(variables.pod.?securityContext.?seccompProfile.?type.orValue('')) in variables.profiles)
  message: containers have a seccomp profile
- expression: >-
    variables.kept || variables.containers.all(each, 'ALL' in each.?securityContext.?capabilities.?drop.orValue([]))
  message: containers drop ALL capabilities
- expression: >-
    variables.kept || variables.containers.all(each, each.?securityContext.?capabilities.?add.orValue([])
    .all(name, name == 'NET_BIND_SERVICE'))
  message: containers add no capability but NET_BIND_SERVICE
{{- end }}
{{- end }}
{{- end }}
