-- A lease row exists from the run's creation; worker NULL means that nobody holds it. The database's clock decides.

-- name: get
SELECT run_id, epoch, worker, boot, pid, pid_start, expires_at FROM leases WHERE run_id = %(run_id)s AND worker IS NOT NULL;

-- name: claim
WITH mine AS (
    UPDATE leases SET
        epoch = CASE WHEN token = %(token)s THEN epoch ELSE epoch + 1 END,
        worker = %(worker)s, boot = %(boot)s, pid = %(pid)s, pid_start = %(pid_start)s,
        expires_at = capataz_now() + %(ttl_s)s, token = %(token)s
    WHERE run_id = %(run_id)s
      AND (worker IS NULL OR expires_at <= capataz_now() OR epoch = %(replace_epoch)s OR token = %(token)s)
    RETURNING run_id, epoch, worker, boot, pid, pid_start, expires_at
), asleep AS (
    UPDATE runs SET wake = false WHERE run_id IN (SELECT run_id FROM mine)
)
SELECT * FROM mine;

-- name: claimed
SELECT l.run_id, epoch, worker, boot, pid, pid_start, expires_at FROM leases l JOIN runs r ON r.run_id = l.run_id
WHERE token = %(token)s ORDER BY r.created_at, r.run_id;

-- name: claim_ready
WITH due AS (
    SELECT r.run_id
    FROM leases l JOIN runs r ON r.run_id = l.run_id
    WHERE (l.worker IS NULL OR l.expires_at <= capataz_now())
      AND (r.state IN ('queued', 'running') OR (r.state = 'parked' AND r.ready_at <= capataz_now()))
    ORDER BY r.created_at, r.run_id
    LIMIT %(limit)s
    FOR UPDATE OF l SKIP LOCKED
), mine AS (
    UPDATE leases l SET
        epoch = epoch + 1,
        worker = %(worker)s, boot = %(boot)s, pid = %(pid)s, pid_start = %(pid_start)s,
        expires_at = capataz_now() + %(ttl_s)s, token = %(token)s
    FROM due WHERE l.run_id = due.run_id
    RETURNING l.run_id, epoch, worker, boot, pid, pid_start, expires_at
), asleep AS (
    UPDATE runs SET wake = false WHERE run_id IN (SELECT run_id FROM mine)
)
SELECT mine.* FROM mine JOIN runs USING (run_id) ORDER BY created_at, run_id;

-- name: renew
UPDATE leases SET expires_at = capataz_now() + %(ttl_s)s
WHERE run_id = %(run_id)s AND epoch = %(epoch)s AND worker = %(worker)s
RETURNING run_id, epoch, worker, boot, pid, pid_start, expires_at;

-- name: release
WITH freed AS (
    UPDATE leases SET worker = NULL, boot = NULL, pid = NULL, pid_start = NULL, expires_at = 0, token = NULL
    WHERE run_id = %(run_id)s AND epoch = %(epoch)s AND worker = %(worker)s
    RETURNING run_id
)
SELECT pg_notify('capataz', run_id) FROM freed;
