-- Epochs of loops leave the journal for an archive; runs wait for states.

CREATE TABLE effects_archive (
    id bigint NOT NULL,
    run_id text NOT NULL,
    generation integer NOT NULL,
    key text NOT NULL,
    parent text,
    scope text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    input_digest text NOT NULL,
    ordinal integer NOT NULL,
    request_no bigint,
    delivery_no bigint,
    status text NOT NULL,
    input json,
    result json,
    error json,
    usage json,
    cost numeric NOT NULL,
    started_at double precision NOT NULL,
    ended_at double precision,
    repeated boolean NOT NULL,
    reused_from integer,
    start_tree text,
    end_tree text,
    worker text NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (run_id, generation, key)
);
COMMENT ON TABLE effects_archive IS 'rows of finished epochs of loops: a resume does not read them';

CREATE TABLE state_waits (
    run_id text NOT NULL,
    reach text NOT NULL,
    owner text NOT NULL,
    name text NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (reach, owner, name, run_id)
);
COMMENT ON TABLE state_waits IS 'parked runs that become ready when a state has a version after this one';
CREATE INDEX state_waits_of_run ON state_waits (run_id);

CREATE FUNCTION capataz_lock_state(p_reach text, p_owner text, p_name text) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(p_reach || E'\x01' || p_owner || E'\x01' || p_name, 52107));
$$;

CREATE FUNCTION capataz_wait_for_states(p_run text, waits jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_changed boolean := false;
    x record;
BEGIN
    DELETE FROM state_waits WHERE run_id = p_run;
    FOR x IN
        SELECT reach, owner, name, min(version) AS version
        FROM jsonb_to_recordset(waits) AS r(reach text, owner text, name text, version bigint)
        GROUP BY reach, owner, name ORDER BY reach, owner, name
    LOOP
        PERFORM capataz_lock_state(x.reach, x.owner, x.name);
        INSERT INTO state_waits (run_id, reach, owner, name, version) VALUES (p_run, x.reach, x.owner, x.name, x.version);
        v_changed := v_changed OR EXISTS (
            SELECT 1 FROM state_values s
            WHERE s.reach = x.reach AND s.owner = x.owner AND s.name = x.name AND s.version > x.version);
    END LOOP;
    RETURN v_changed;
END
$$;

CREATE FUNCTION capataz_state_put(p_run text, p_epoch bigint, p_worker text, p_reach text, p_owner text, p_name text,
                                  p_expected bigint, p_model integer, p_value json, p_effect text, p_at double precision)
RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leases WHERE run_id = p_run AND epoch = p_epoch AND worker = p_worker FOR SHARE;
    IF NOT FOUND THEN
        RETURN 'lease_lost';
    END IF;
    PERFORM capataz_lock_state(p_reach, p_owner, p_name);
    IF EXISTS (SELECT 1 FROM state_versions v
               WHERE v.reach = p_reach AND v.owner = p_owner AND v.name = p_name AND v.version = p_expected + 1
                 AND v.run_id = p_run AND v.effect = p_effect) THEN
        RETURN 'ok';
    END IF;
    IF p_expected <> coalesce((SELECT version FROM state_values s WHERE s.reach = p_reach AND s.owner = p_owner AND s.name = p_name), 0) THEN
        RETURN 'conflict';
    END IF;
    INSERT INTO state_values AS s (reach, owner, name, version, model_version, value, updated_at)
    VALUES (p_reach, p_owner, p_name, p_expected + 1, p_model, p_value, p_at)
    ON CONFLICT (reach, owner, name) DO UPDATE
    SET version = excluded.version, model_version = excluded.model_version, value = excluded.value, updated_at = excluded.updated_at;
    INSERT INTO state_versions (reach, owner, name, version, model_version, value, run_id, effect, written_at)
    VALUES (p_reach, p_owner, p_name, p_expected + 1, p_model, p_value, p_run, p_effect, p_at);
    PERFORM 1 FROM runs
    WHERE run_id IN (SELECT run_id FROM state_waits w WHERE w.reach = p_reach AND w.owner = p_owner AND w.name = p_name)
    ORDER BY run_id FOR UPDATE;
    PERFORM pg_notify('capataz', run_id) FROM (
        SELECT w.run_id FROM state_waits w WHERE w.reach = p_reach AND w.owner = p_owner AND w.name = p_name) AS waiting;
    UPDATE runs SET ready_at = capataz_now()
    WHERE state = 'parked'
      AND run_id IN (SELECT run_id FROM state_waits w WHERE w.reach = p_reach AND w.owner = p_owner AND w.name = p_name);
    RETURN 'ok';
END
$$;

-- Moves effects and all that is below them (calls of agents, effects of children and of inner loops) to the archive.
CREATE FUNCTION capataz_archive(p_run text, p_generation integer, p_keys text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_keys text[];
BEGIN
    WITH RECURSIVE gone AS (
        SELECT key FROM effects WHERE run_id = p_run AND generation = p_generation AND key = ANY (p_keys)
        UNION
        SELECT e.key FROM effects e JOIN gone g ON e.parent = g.key WHERE e.run_id = p_run AND e.generation = p_generation
    )
    SELECT array_agg(key) INTO v_keys FROM gone;
    WITH moved AS (
        DELETE FROM effects e WHERE e.run_id = p_run AND e.generation = p_generation AND e.key = ANY (v_keys)
        RETURNING e.*
    )
    INSERT INTO effects_archive (id, run_id, generation, key, parent, scope, kind, name, input_digest, ordinal, request_no, delivery_no,
                                 status, input, result, error, usage, cost, started_at, ended_at, repeated, reused_from, start_tree,
                                 end_tree, worker, epoch)
    SELECT id, run_id, generation, key, parent, scope, kind, name, input_digest, ordinal, request_no, delivery_no, status, input,
           result, error, usage, cost, started_at, ended_at, repeated, reused_from, start_tree, end_tree, worker, epoch
    FROM moved
    ON CONFLICT (run_id, generation, key) DO NOTHING;
    PERFORM capataz_fold_reservations(p_run, p_generation, v_keys);
END
$$;

-- Settled reservations of a finished epoch become one row for each path of accounts, with the same use and overrun: what was
-- reserved counts up to what was used of it.
CREATE FUNCTION capataz_fold_reservations(p_run text, p_generation integer, p_keys text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    x record;
BEGIN
    FOR x IN
        SELECT r.accounts, '~archived:' || array_to_string(r.accounts, ',') AS sum_key, array_agg(r.effect) AS effects
        FROM reservations r
        WHERE r.run_id = p_run AND r.generation = p_generation AND r.effect = ANY (p_keys) AND r.settled IS NOT NULL
        GROUP BY r.accounts
    LOOP
        WITH old AS (
            SELECT reserved::jsonb AS reserved, settled::jsonb AS settled FROM reservations
            WHERE run_id = p_run AND generation = p_generation AND (effect = ANY (x.effects) OR effect = x.sum_key)
        ), fields AS (
            SELECT s.key, sum((s.value #>> '{}')::numeric) AS used,
                   sum(least((s.value #>> '{}')::numeric, coalesce((old.reserved ->> s.key)::numeric, 0))) AS covered
            FROM old, jsonb_each(old.settled) AS s GROUP BY s.key
        ), sums AS (
            SELECT coalesce(jsonb_object_agg(key, CASE WHEN key = 'usd' THEN to_jsonb(used::text) ELSE to_jsonb(used) END), '{}') AS used,
                   coalesce(jsonb_object_agg(key, CASE WHEN key = 'usd' THEN to_jsonb(covered::text) ELSE to_jsonb(covered) END), '{}') AS covered
            FROM fields
        )
        INSERT INTO reservations (run_id, generation, effect, accounts, reserved, settled)
        SELECT p_run, p_generation, x.sum_key, x.accounts, covered::json, used::json FROM sums
        ON CONFLICT (run_id, generation, effect) DO UPDATE SET reserved = excluded.reserved, settled = excluded.settled;
        DELETE FROM reservations WHERE run_id = p_run AND generation = p_generation AND effect = ANY (x.effects);
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION capataz_commit(p_run text, p_epoch bigint, p_worker text, b jsonb) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v_generation integer;
    v_old_generation integer;
    v_last bigint;
    v_count integer;
    v_wake boolean;
    v_changed boolean;
    u jsonb;
    x record;
BEGIN
    SELECT r.generation INTO v_generation
    FROM leases l JOIN runs r ON r.run_id = l.run_id
    WHERE l.run_id = p_run AND l.epoch = p_epoch AND l.worker = p_worker
    FOR SHARE OF l;
    IF NOT FOUND THEN
        RETURN 'lease_lost';
    END IF;
    u := b -> 'run';
    v_old_generation := v_generation;
    v_generation := greatest(coalesce((u ->> 'generation')::integer, v_generation), v_generation);
    IF v_generation > v_old_generation THEN
        UPDATE reservations SET settled = '{}'
        WHERE run_id = p_run AND generation < v_generation AND settled IS NULL;
    END IF;

    IF b ? 'accounts' THEN
        INSERT INTO accounts (run_id, account, limits)
        SELECT p_run, r.account, r.limits::json FROM jsonb_to_recordset(b -> 'accounts') AS r(account text, limits text)
        ON CONFLICT (run_id, account) DO UPDATE SET limits = excluded.limits;
    END IF;

    IF b ? 'requested' THEN
        INSERT INTO effects (run_id, generation, key, parent, scope, kind, name, input_digest, ordinal, request_no, input,
                             started_at, reused_from, start_tree, worker, epoch)
        SELECT p_run, v_generation, r.key, r.parent, r.scope, r.kind, r.name, r.digest, r.ordinal, r.no, r.input::json,
               r.at, r.reused, r.tree, p_worker, p_epoch
        FROM jsonb_to_recordset(b -> 'requested')
            AS r(key text, parent text, scope text, kind text, name text, digest text, ordinal integer, no bigint, input text,
                 at double precision, reused integer, tree text)
        ON CONFLICT (run_id, generation, key) DO NOTHING;
    END IF;

    IF b ? 'reserved' THEN
        INSERT INTO reservations (run_id, generation, effect, accounts, reserved)
        SELECT p_run, v_generation, r.effect, r.accounts, r.usage::json
        FROM jsonb_to_recordset(b -> 'reserved') AS r(effect text, accounts text[], usage text)
        ON CONFLICT (run_id, generation, effect) DO NOTHING;
    END IF;

    IF b ? 'completed' THEN
        v_count := 0;
        FOR x IN
            SELECT * FROM jsonb_to_recordset(b -> 'completed')
                AS r(key text, status text, no bigint, result text, error text, usage text, cost numeric, at double precision,
                     tree text, repeated boolean)
        LOOP
            UPDATE effects
            SET status = x.status, delivery_no = x.no, result = x.result::json, error = x.error::json, usage = x.usage::json,
                cost = x.cost, ended_at = x.at, end_tree = x.tree, repeated = x.repeated
            WHERE run_id = p_run AND generation = v_generation AND key = x.key AND status = 'requested';
            IF FOUND THEN
                v_count := v_count + 1;
            END IF;
        END LOOP;
        IF v_count < jsonb_array_length(b -> 'completed') THEN  -- a repeated write, or completions of rows that are not there
            SELECT count(*) INTO v_count
            FROM jsonb_to_recordset(b -> 'completed') AS r(key text)
            WHERE EXISTS (SELECT 1 FROM effects e WHERE e.run_id = p_run AND e.generation = v_generation AND e.key = r.key)
               OR EXISTS (SELECT 1 FROM effects_archive e WHERE e.run_id = p_run AND e.generation = v_generation AND e.key = r.key);
            IF v_count < jsonb_array_length(b -> 'completed') THEN
                RAISE EXCEPTION 'completion of an effect that was never requested in run %', p_run USING ERRCODE = 'CZ001';
            END IF;
        END IF;
    END IF;

    IF b ? 'settled' THEN
        FOR x IN SELECT * FROM jsonb_to_recordset(b -> 'settled') AS r(effect text, usage text) LOOP
            UPDATE reservations SET settled = x.usage::json
            WHERE run_id = p_run AND generation = v_generation AND effect = x.effect AND settled IS NULL;
        END LOOP;
    END IF;

    IF b ? 'asks' THEN
        INSERT INTO asks (ask_id, run_id, effect, kind, question, options, schema, context, approvers, channel, risk, binding,
                          opened_at, expires_at)
        SELECT r.id, p_run, r.effect, r.kind, r.question, r.options::json, r.schema::json, r.context::json, r.approvers::json,
               r.channel, r.risk, r.binding, r.opened, r.expires
        FROM jsonb_to_recordset(b -> 'asks')
            AS r(id text, effect text, kind text, question text, options text, schema text, context text, approvers text,
                 channel text, risk text, binding text, opened double precision, expires double precision)
        ON CONFLICT (ask_id) DO NOTHING;
    END IF;

    IF b ? 'asks_closed' THEN
        UPDATE asks a SET closed = r.why
        FROM jsonb_to_recordset(b -> 'asks_closed') AS r(id text, why text)
        WHERE a.ask_id = r.id AND a.run_id = p_run AND a.answered_at IS NULL AND a.closed IS NULL;
    END IF;

    IF b ? 'inbox_done' THEN
        UPDATE inbox SET done = true
        WHERE run_id = p_run AND NOT done AND seq IN (SELECT value::bigint FROM jsonb_array_elements_text(b -> 'inbox_done'));
    END IF;

    IF b ? 'timers' THEN
        INSERT INTO timers (run_id, effect, due)
        SELECT p_run, r.effect, r.due FROM jsonb_to_recordset(b -> 'timers') AS r(effect text, due double precision)
        ON CONFLICT (run_id, effect) DO NOTHING;
    END IF;

    IF b ? 'timers_done' THEN
        DELETE FROM timers WHERE run_id = p_run AND effect IN (SELECT value FROM jsonb_array_elements_text(b -> 'timers_done'));
    END IF;

    IF b ? 'events' THEN
        SELECT coalesce(max(seq), 0) INTO v_last FROM events WHERE run_id = p_run;
        IF (b #>> '{events,0,seq}')::bigint > v_last + 1 THEN
            RAISE EXCEPTION 'events of run % would have a gap after %', p_run, v_last USING ERRCODE = 'CZ002';
        END IF;
        INSERT INTO events (run_id, seq, type, at, effect, data)
        SELECT p_run, r.seq, r.type, r.at, r.effect, r.data::json
        FROM jsonb_to_recordset(b -> 'events') AS r(seq bigint, type text, at double precision, effect text, data text)
        ON CONFLICT (run_id, seq) DO NOTHING;
    END IF;

    IF b ? 'candidates' THEN
        INSERT INTO candidates (run_id, candidate_id, sha, record, created_at)
        SELECT p_run, r.id, r.sha, r.record::json, capataz_now()
        FROM jsonb_to_recordset(b -> 'candidates') AS r(id text, sha text, record text)
        ON CONFLICT (run_id, candidate_id) DO NOTHING;
    END IF;

    IF b ? 'promotions' THEN
        INSERT INTO promotions (run_id, envelope_digest, ref, old_sha, new_sha, record, created_at)
        SELECT p_run, r.envelope, r.ref, r.old, r.new, r.record::json, capataz_now()
        FROM jsonb_to_recordset(b -> 'promotions') AS r(envelope text, ref text, old text, new text, record text)
        ON CONFLICT (run_id, envelope_digest, ref) DO NOTHING;
    END IF;

    IF b ? 'archived' THEN  -- after the completions: the last ones of the epoch may be in this batch
        PERFORM capataz_archive(p_run, v_generation, ARRAY(SELECT jsonb_array_elements_text(b -> 'archived')));
    END IF;

    IF u ? 'state' THEN
        v_wake := capataz_wait_for_states(p_run, coalesce(b -> 'state_waits', '[]'));
    END IF;

    IF u IS NOT NULL THEN
        v_changed := v_wake;
        SELECT wake INTO v_wake FROM runs WHERE run_id = p_run FOR UPDATE;
        PERFORM capataz_update_run(p_run, v_generation, u);
        -- Whoever answers or posts takes the same row lock, so what came before is seen here and what comes after wakes the run.
        IF u ->> 'state' = 'parked' AND (v_changed OR v_wake AND capataz_has_news(p_run, v_generation)) THEN
            UPDATE runs SET ready_at = capataz_now() WHERE run_id = p_run;
        END IF;
    END IF;

    IF u IS NOT NULL OR (b ? 'events' AND NOT b ? 'quiet') THEN
        PERFORM pg_notify('capataz', p_run);
    END IF;
    RETURN 'ok';
END
$$;
