-- name: effects
SELECT generation, key, parent, scope, kind, name, input_digest, ordinal, request_no, delivery_no, status, input, result, error,
       usage, started_at, ended_at, repeated, reused_from, start_tree, end_tree, worker, epoch
FROM effects
WHERE run_id = %(run_id)s
  AND generation = coalesce(%(generation)s::integer, (SELECT generation FROM runs WHERE run_id = %(run_id)s))
ORDER BY id;

-- name: events
SELECT seq, type, at, effect, data FROM events WHERE run_id = %(run_id)s AND seq > %(after)s ORDER BY seq LIMIT %(limit)s;

-- name: accounts
SELECT account, limits FROM accounts WHERE run_id = %(run_id)s ORDER BY account;

-- name: reservations
SELECT accounts, reserved, settled FROM reservations WHERE run_id = %(run_id)s;

-- name: timers
SELECT effect, due FROM timers WHERE run_id = %(run_id)s;

-- name: usage
-- Every row holds only what itself used: an agent's own row has neither its calls' tokens nor their money.
SELECT usage FROM effects WHERE run_id = %(run_id)s AND reused_from IS NULL AND usage IS NOT NULL
UNION ALL
SELECT usage FROM effects_archive WHERE run_id = %(run_id)s AND reused_from IS NULL AND usage IS NOT NULL;

-- name: archive
SELECT generation, key, parent, scope, kind, name, input_digest, ordinal, request_no, delivery_no, status, input, result, error,
       usage, started_at, ended_at, repeated, reused_from, start_tree, end_tree, worker, epoch
FROM effects_archive WHERE run_id = %(run_id)s ORDER BY id LIMIT %(limit)s OFFSET %(after)s;

-- name: inbox
SELECT seq, kind, target, body, sender, created_at FROM inbox WHERE run_id = %(run_id)s AND NOT done ORDER BY seq;
