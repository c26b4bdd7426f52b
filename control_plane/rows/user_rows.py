"""The rows of users: tokens, sign-in codes, templates, views, reports, models and others."""

from control_plane.rows.row_type import RowType

TOKEN = RowType(
    name="token",
    key="tokens / DIGEST",
    meaning="A valid token. DIGEST is the SHA-256 of the token.",
    record="control_plane.access.principals:Principal",
    writers=(
        "access.tokens",
        "usecases.user_tokens",
        "usecases.browser_sessions",
        "access.agent_credentials",
        "actors.agent.actor",
    ),
    readers=("access.tokens", "access.agent_credentials", "usecases.user_tokens"),
    expiry="at the end of the session, for tokens of browsers",
)
TOKEN_ENTRY = RowType(
    name="token record",
    key="token-entries / TOKEN",
    meaning="The record of a token that a user created, which stays after the token's end.",
    record="control_plane.usecases.user_tokens:TokenRecord",
    writers=("usecases.user_tokens", "usecases.agent_enrolment"),
    readers=("usecases.user_tokens", "usecases.agent_enrolment", "api.routes.tokens"),
    is_mutable=True,
)
SIGN_IN_CODE = RowType(
    name="sign-in code",
    key="sign-in-codes / DIGEST",
    meaning="A code that opens a single session of a browser. DIGEST is the SHA-256 of the code.",
    record="control_plane.access.principals:Principal",
    writers=("usecases.browser_sessions",),
    readers=("usecases.browser_sessions",),
    expiry="5 min after the code was created; an hour for a server's first start",
)
IDEMPOTENCY_KEY = RowType(
    name="idempotency key",
    key="idempotency#USER / I#KEY",
    meaning="A mutation that took effect, with the answer for repetitions.",
    fields={
        "digest": "the digest of the request",
        "status": "the HTTP status code",
        "reply": "the reply of the effect, from which the answer is built",
        "answer": "the JSON text of the answer; missing until the first answer",
    },
    writers=("usecases.idempotency",),
    readers=("usecases.idempotency",),
    expiry="24 h after the request",
    is_mutable=True,
    secret_fields=("reply", "answer"),
)
IDEMPOTENCY_PART = RowType(
    name="idempotency key of an effect",
    key="idempotency#USER / J#NUMBER#I#KEY",
    meaning="An effect of a mutation with several effects. NUMBER counts the effects from 1.",
    fields=IDEMPOTENCY_KEY.fields,
    writers=("usecases.idempotency",),
    readers=("usecases.idempotency",),
    expiry="24 h after the request",
    is_mutable=True,
    secret_fields=("reply", "answer"),
)
TEMPLATE = RowType(
    name="template",
    key="templates / NAME",
    meaning="A partial configuration.",
    record="control_plane.usecases.templates:TemplateRecord",
    writers=("usecases.templates",),
    readers=("usecases.templates", "api.routes.templates"),
    is_mutable=True,
    secret_fields=("config",),
)
AGENT_USER = RowType(
    name="agent user",
    key="agent-users / KIND#NAME",
    meaning=(
        "The user of the machines that trials of a user or a workspace run as. KIND is `user` or "
        "`workspace`. NAME is quoted as in URLs."
    ),
    record="control_plane.access.agent_users:AgentUserRecord",
    writers=("usecases.agent_users",),
    readers=("access.agent_users", "usecases.agent_users", "api.routes.agent_users"),
    is_mutable=True,
)
SCHEDULE = RowType(
    name="schedule",
    key="schedules / SCHEDULE",
    meaning="A schedule that submits experiments. Each run is one commit with its experiment.",
    record="control_plane.queries.schedules:ScheduleRecord",
    writers=("usecases.schedules", "usecases.scheduled_runs"),
    readers=("queries.schedules", "usecases.schedules", "usecases.scheduled_runs"),
    is_mutable=True,
)
SCHEDULED_SUBMISSION = RowType(
    name="scheduled submission",
    key="scheduled-submissions / SCHEDULE",
    meaning="The submission that a schedule repeats. Lists of schedules do not read these rows.",
    record="control_plane.queries.schedules:ScheduledSubmission",
    writers=("usecases.schedules",),
    readers=("queries.schedules", "usecases.scheduled_runs"),
    secret_fields=("config", "overrides"),
)
SCHEDULE_TIME = RowType(
    name="time of a schedule",
    # An older release ignores due rows with the sort keys of parts, and deletes other due rows.
    key="schedule#SCHEDULE / P#time",
    meaning="The entry in the due index for the next time of an active schedule.",
    writers=("usecases.schedules", "usecases.scheduled_runs"),
    readers=("usecases.scheduled_runs",),
    body="empty",
    due="at the next time of the schedule, or after an hour, when the row is postponed again",
)
EXPERIMENT_VIEW = RowType(
    name="experiment view",
    key="experiment-views / USER#NAME",
    meaning="A saved view of the list of experiments. USER and NAME are quoted as in URLs.",
    record="control_plane.usecases.experiment_views:ViewRecord",
    writers=("usecases.experiment_views",),
    readers=("usecases.experiment_views",),
)
REPORT = RowType(
    name="report",
    key="reports / REPORT",
    meaning="The facts of a report. Every commit also writes the text, with the same revision.",
    record="control_plane.usecases.reports:ReportRecord",
    writers=("usecases.reports",),
    readers=("usecases.reports",),
    is_mutable=True,
)
REPORT_TEXT = RowType(
    name="report text",
    key="report-texts / REPORT",
    meaning="The text of a report. Lists of reports do not read these rows.",
    record="control_plane.usecases.reports:ReportText",
    writers=("usecases.reports",),
    readers=("usecases.reports",),
)
MODEL = RowType(
    name="registered model",
    key="models / NAME",
    meaning="A registered model.",
    record="control_plane.queries.model_records:ModelRecord",
    writers=("usecases.models", "usecases.model_versions"),
    readers=("queries.model_records", "queries.models"),
    is_mutable=True,
)
MODEL_VERSION = RowType(
    name="model version",
    key="model-versions#MODEL / NUMBER",
    meaning="A version of a registered model.",
    record="control_plane.queries.model_records:VersionRecord",
    writers=("usecases.models", "usecases.model_versions"),
    readers=("queries.model_records", "queries.models"),
    is_mutable=True,
)

ROW_TYPES = (
    TOKEN,
    TOKEN_ENTRY,
    SIGN_IN_CODE,
    IDEMPOTENCY_KEY,
    IDEMPOTENCY_PART,
    TEMPLATE,
    AGENT_USER,
    SCHEDULE,
    SCHEDULED_SUBMISSION,
    SCHEDULE_TIME,
    EXPERIMENT_VIEW,
    REPORT,
    REPORT_TEXT,
    MODEL,
    MODEL_VERSION,
)
