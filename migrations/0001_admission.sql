-- Tenants, devices, API keys and revocations: what admission asks for. A tenant or device without a row is a good one.

create table tenants (
  id text primary key,
  status text not null default 'active' check (status in ('active', 'archived')),
  created_at timestamptz not null default now(),
  changed_at timestamptz not null default now()
);

create table devices (
  tenant text not null,
  user_id text not null,
  id text not null,
  -- SHA-256 of the device's token, if it has one of ours
  token_hash bytea unique check (octet_length(token_hash) = 32),
  paired_at timestamptz,
  revoked_at timestamptz,
  -- of a device that was made anew after it had been revoked: its issuer's tokens up to then stay dead
  revoked_up_to timestamptz,
  created_at timestamptz not null default now(),
  primary key (tenant, user_id, id)
);

create table api_keys (
  -- public: the part of the key that is no secret
  id text primary key,
  -- null: for every tenant
  tenant text,
  -- SHA-256 of the whole key
  key_hash bytea not null check (octet_length(key_hash) = 32),
  scopes text[] not null,
  label text not null default '',
  expires_at timestamptz,
  revoked_at timestamptz,
  created_at timestamptz not null default now()
);

-- Of tokens that others issue: a user's, up to a time of issue (`not_before`), or one by its `jti`
create table revocations (
  tenant text not null,
  kind text not null check (kind in ('user', 'token')),
  id text not null,
  not_before timestamptz not null default now(),
  -- when every token that it is about has expired, and the row may go
  expires_at timestamptz,
  primary key (tenant, kind, id)
);

-- A notice names what changed, as a JSON list; names have at most 200 characters, so it stays below the 8,000 bytes of NOTIFY.
create function holdfast_admission_notice() returns trigger language plpgsql as $$
declare
  -- as JSON, because each table has other columns
  changed jsonb := to_jsonb(case tg_op when 'DELETE' then old else new end);
  name jsonb;
begin
  if tg_table_name = 'tenants' then
    name := jsonb_build_array('tenant', changed->'id');
  elsif tg_table_name = 'devices' then
    name := jsonb_build_array('device', changed->'tenant', changed->'user_id', changed->'id');
  elsif tg_table_name = 'api_keys' then
    name := jsonb_build_array('key', changed->'id');
  else
    name := jsonb_build_array(changed->'kind', changed->'tenant', changed->'id');
  end if;
  perform pg_notify('holdfast_admission', name::text);
  return null;
end
$$;

-- Rows that are renamed, or gone without a word on each: whoever keeps something of them looks again.
create function holdfast_admission_everything() returns trigger language plpgsql as $$
begin
  perform pg_notify('holdfast_admission', '["everything"]');
  return null;
end
$$;

create trigger tenants_notice after insert or update or delete on tenants
  for each row execute function holdfast_admission_notice();
create trigger devices_notice after insert or update or delete on devices
  for each row execute function holdfast_admission_notice();
create trigger api_keys_notice after insert or update or delete on api_keys
  for each row execute function holdfast_admission_notice();
create trigger revocations_notice after insert or update or delete on revocations
  for each row execute function holdfast_admission_notice();

create trigger tenants_renamed after update of id on tenants for each statement execute function holdfast_admission_everything();
create trigger devices_renamed after update of tenant, user_id, id on devices
  for each statement execute function holdfast_admission_everything();
create trigger api_keys_renamed after update of id on api_keys
  for each statement execute function holdfast_admission_everything();
create trigger revocations_renamed after update of tenant, kind, id on revocations
  for each statement execute function holdfast_admission_everything();
create trigger tenants_truncated after truncate on tenants execute function holdfast_admission_everything();
create trigger devices_truncated after truncate on devices execute function holdfast_admission_everything();
create trigger api_keys_truncated after truncate on api_keys execute function holdfast_admission_everything();
create trigger revocations_truncated after truncate on revocations execute function holdfast_admission_everything();
