"""Faults of the operator's plan. Those with the subject of a commit undo its fix."""

from fault import Fault

PLAN = "operator/llm_operator/plan"
TESTS = "tests/operator/plan"

FAULTS = (
    # Plan, prune and assess LLMDeployments in separate pure functions
    Fault(
        "a child that is not planned any more is not deleted",
        f"{PLAN}/plan.py",
        "delete=tuple(key for key, existing in others.items() if may_delete(existing, deployment))",
        "delete=()",
        (f"{TESTS}/test_plan.py",),
    ),
    # Plan, prune and assess LLMDeployments in separate pure functions
    Fault(
        "an object of another owner is overwritten",
        f"{PLAN}/decide.py",
        "if (existing := observed.children.get(key)) and not may_apply(existing, deployment)",
        'if (existing := observed.children.get(key)) and not existing["metadata"]',
        (f"{TESTS}/test_decide.py",),
    ),
    # Complete the operator, chart and dashboards, and try them on a real cluster
    Fault(
        "a paused deployment is changed",
        f"{PLAN}/decide.py",
        "if observed.is_paused:",
        "if not deployment.spec:",
        (f"{TESTS}/test_decide.py",),
    ),
    # Complete the operator, chart and dashboards, and try them on a real cluster
    Fault(
        "two deployments cannot share a cache",
        f"{PLAN}/ownership.py",
        "if is_owned(existing, deployment) or is_shared(existing):",
        "if is_owned(existing, deployment):",
        (f"{TESTS}/test_ownership.py",),
    ),
    # Serve spec.adapters: engines get the list of LoRA adapters over their admin API
    Fault(
        "engines with adapters have no admin API where keys are off",
        f"{PLAN}/pod/keys.py",
        "return settings.engine_keys or deployment.has_adapters",
        "return settings.engine_keys",
        (f"{TESTS}/pod/test_adapters.py",),
    ),
    Fault(
        "a new release of the operator restarts downloads",
        f"{PLAN}/children/fetch_job.py",
        "labels.fetch_pod_labels(cache.name)",
        "labels.fetch_pod_labels(cache.name) | labels.shared_labels(settings.version)",
        (f"{TESTS}/children/test_cache.py",),
    ),
    Fault(
        "a claim that was created anew stays empty",
        f"{PLAN}/children/cache.py",
        "return mark(cache, observed) in map(observed.cached_model, places)",
        "return any(map(observed.cached_model, places))",
        (f"{TESTS}/children/test_cache.py",),
    ),
    Fault(
        "the template of another owner's replicas is used",
        f"{PLAN}/pod/template_record.py",
        "if uid in owners_of(replica_set):",
        "if uid and owners_of(replica_set):",
        (f"{TESTS}/pod/test_template_record.py",),
    ),
    Fault(
        "a template that somebody has modified is taken for the operator's",
        f"{PLAN}/pod/template_record.py",
        "if given != record_hash(template, made_for, rolled_at):",
        "if given is None:",
        (f"{TESTS}/pod/test_template_record.py",),
    ),
    Fault(
        "a scale-down to zero is taken for one that leaves replicas",
        f"{PLAN}/deletion_cost.py",
        "return 0 < after < before",
        "return 0 <= after < before",
        (f"{TESTS}/test_deletion_cost.py",),
    ),
)
