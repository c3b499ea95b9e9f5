#!/bin/sh
# Patroni runs this once, on the first primary, with the URL of the superuser: it creates the role and the database of Scrubjay.
set -eu
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set password="$DATABASE_PASSWORD" "$1" <<'SQL'
CREATE ROLE scrubjay LOGIN PASSWORD :'password';
CREATE DATABASE scrubjay OWNER scrubjay;
SQL
