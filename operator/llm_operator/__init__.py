"""The operator: it turns LLMDeployments into pods, and reports what has become of them.

`handlers.py` has all that kopf calls. What kopf 1.45.2 offers beyond lists, watches and login is not used, and each
part that stands in its place has a reason:

- Informer, in place of `kopf run`: an expired page of a list, or a watch refused with 410, ends `kopf.operator()`; one
  namespace that cannot be read would end the watches of all; a kind that discovery missed is not looked for again.
- Relist: after a watch has expired, kopf lists again, but reports no object that was deleted meanwhile.
- Store, in place of `@kopf.index`: an index takes no answers to our own writes, keeps those deleted objects, and
  holds every object decoded.
- Lease and /healthz, in place of peering and `--liveness`: peering needs a custom resource of kopf's, and while a
  startup handler waits to be elected, kopf's endpoint refuses connections, so that the kubelet would kill the standby.
- Queue, in place of change handlers, daemons and timers: these write annotations or finalizers to the objects.
"""
