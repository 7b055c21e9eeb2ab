-- What other processes than the run's writer may do. Lock order: ask, then run.

-- name: asks
SELECT ask_id, run_id, effect, kind, question, options, schema, context, approvers, channel, risk, binding, opened_at, expires_at,
       answer, answered_by, answered_at, answer_channel, note, closed
FROM asks
WHERE (%(run_id)s::text IS NULL OR run_id = %(run_id)s) AND (NOT %(open_only)s OR (answered_at IS NULL AND closed IS NULL))
ORDER BY opened_at, ask_id;

-- name: ask
SELECT ask_id, run_id, effect, kind, question, options, schema, context, approvers, channel, risk, binding, opened_at, expires_at,
       answer, answered_by, answered_at, answer_channel, note, closed, token
FROM asks WHERE ask_id = %(ask_id)s;

-- name: answer
WITH decided AS (
    UPDATE asks SET answer = %(value)s::json, answered_by = %(by)s, answered_at = %(at)s, answer_channel = %(channel)s,
                    note = %(note)s, token = %(token)s
    WHERE ask_id = %(ask_id)s AND answered_at IS NULL AND closed IS NULL
    RETURNING run_id
), woken AS (
    UPDATE runs SET wake = true, ready_at = CASE WHEN state = 'parked' THEN capataz_now() ELSE ready_at END
    WHERE run_id IN (SELECT run_id FROM decided)
    RETURNING run_id
)
SELECT pg_notify('capataz', run_id) FROM woken;

-- name: posted
SELECT seq FROM inbox WHERE run_id = %(run_id)s AND token = %(token)s;

-- name: wake
UPDATE runs SET wake = true, ready_at = CASE WHEN state = 'parked' THEN capataz_now() ELSE ready_at END
WHERE run_id = %(run_id)s
RETURNING pg_notify('capataz', run_id);

-- name: post
INSERT INTO inbox (run_id, seq, kind, target, body, sender, created_at, token)
SELECT %(run_id)s, coalesce((SELECT max(seq) FROM inbox WHERE run_id = %(run_id)s), 0) + 1, %(kind)s, %(target)s, %(body)s::json,
       %(sender)s, %(at)s, %(token)s
RETURNING seq;
