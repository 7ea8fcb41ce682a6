#!/bin/bash
# what:   Apache (pre-forking) on loopback under ab: pages, CGI output, one access-log line per request
# needs:  /usr/sbin/apache2 ab curl
# debian: apache2-bin apache2-utils curl
# limit:  60
# ignore: logs logs/*
# root:   yes

mkdir htdocs logs
seq 1 4000 >htdocs/page.txt
make_data htdocs/blob 300 5
cat >htdocs/hello.cgi <<'EOF'
#!/bin/sh
printf 'Content-Type: text/plain\n\nhello from %s\n' "$QUERY_STRING"
EOF
chmod 755 htdocs/hello.cgi
modules=/usr/lib/apache2/modules
port=$(outside python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$LAB_SCRATCH/apache.conf" <<EOF
ServerRoot $PWD
ServerName localhost
Listen 127.0.0.1:$port
User nobody
Group nogroup
PidFile $LAB_SCRATCH/apache.pid
DefaultRuntimeDir $LAB_SCRATCH
LoadModule mpm_prefork_module $modules/mod_mpm_prefork.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule cgi_module $modules/mod_cgi.so
StartServers 4
MaxRequestWorkers 8
DocumentRoot $PWD/htdocs
ErrorLog $PWD/logs/error.log
LogFormat "%h %l %u \"%r\" %>s %B %{id}e" common
CustomLog $PWD/logs/access.log common
EnableMMAP On
EnableSendfile On
<Directory $PWD/htdocs>
    Options +ExecCGI
    Require all granted
</Directory>
<FilesMatch "\.cgi$">
    SetHandler cgi-script
</FilesMatch>
EOF
# The log is opened by root, then written by children that became nobody.
chmod 755 . "$LAB_SCRATCH"
# It ends by signalling its whole process group, which must not be ours.
set -m
/usr/sbin/apache2 -f "$LAB_SCRATCH/apache.conf" -D FOREGROUND &
server=$!
set +m
url=http://127.0.0.1:$port
# The loop is the outsider here; what it asks does not go into the counted log lines.
wait_until 20 curl -sf "$url/page.txt?ready"
ab -q -n 2000 -c 8 "$url/page.txt" | grep -E '^(Complete|Failed) requests|^Document Length'
ab -q -n 400 -c 4 -k "$url/blob" | grep -E '^(Complete|Failed) requests|^Document Length'
for i in 1 2 3; do curl -sf "$url/hello.cgi?$i"; done
curl -sf "$url/blob" | cmp - htdocs/blob && echo "blob equal"
curl -s -o /dev/null -w '%{http_code}\n' "$url/missing"
# A graceful restart reopens the log while requests run.
kill -USR1 "$server"
ab -q -n 500 -c 4 "$url/page.txt" | grep -E '^(Complete|Failed) requests'
kill -TERM "$server"
wait "$server" || true
grep -c 'GET /page.txt HTTP' logs/access.log
grep -c 'GET /blob' logs/access.log
grep -c 'hello.cgi' logs/access.log
grep -vcE '^127\.0\.0\.1 - - "GET /[a-z.]+(\?[a-z0-9]+)? HTTP/1\.[01]" [0-9]+ [0-9]+ -$' logs/access.log || true
