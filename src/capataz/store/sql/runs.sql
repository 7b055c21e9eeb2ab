-- name: put_source
INSERT INTO sources (digest, files, created_at) VALUES (%(digest)s, %(files)s::json, capataz_now())
ON CONFLICT (digest) DO NOTHING;

-- name: get_source
SELECT files FROM sources WHERE digest = %(digest)s;

-- name: create
WITH fresh AS (
    INSERT INTO runs (run_id, program, state, input, options, source_digest, parent_run, tenant, repository, created_at)
    VALUES (%(run_id)s, %(program)s, 'queued', %(input)s::json, %(options)s::json, %(source_digest)s, %(parent_run)s, %(tenant)s,
            %(repository)s, %(created_at)s)
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id
), lease AS (
    INSERT INTO leases (run_id) SELECT run_id FROM fresh
)
SELECT pg_notify('capataz', run_id) FROM fresh;

-- name: get
SELECT run_id, program, state, outcome, reason, input, options, result, source_digest, generation, parent_run, tenant, repository,
       created_at, started_at, ended_at, ready_at, waiting,
       coalesce((SELECT max(seq) FROM events e WHERE e.run_id = r.run_id), 0) AS last_event
FROM runs r WHERE run_id = %(run_id)s;

-- name: list
SELECT run_id, program, state, outcome, reason, input, options, result, source_digest, generation, parent_run, tenant, repository,
       created_at, started_at, ended_at, ready_at, waiting,
       coalesce((SELECT max(seq) FROM events e WHERE e.run_id = r.run_id), 0) AS last_event
FROM runs r
WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(parent_run)s::text IS NULL OR parent_run = %(parent_run)s)
ORDER BY created_at DESC, run_id DESC
LIMIT %(limit)s;

-- name: exists
SELECT 1 FROM runs WHERE run_id = %(run_id)s;

-- name: announce
SELECT pg_notify('capataz', %(run_id)s);
