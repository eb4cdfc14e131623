# Writes python.csv.gz, the rows of arrow.parquet as S3 Inventory has them in CSV: python3 write.py
import csv, gzip, io
from urllib.parse import quote_plus

def key(agent, n):
    return "prod/accepted/v1/agent=%s/boot=%s/%020d-%020d.json" % (agent.encode().hex(), b"boot".hex(), n * 10, n * 10 + 9)

rows = [(key("host%d" % (i % 3), i // 3), "true", "false") for i in range(30)]
rows += [(key("host0", 50), "false", "false"), (key("host0", 51), "true", "true"), ("other/x y+z.json", "true", "false"), ("prod/raw-blobs/v1/sha256/aa", "true", "false")]
text = io.StringIO()
w = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
for i, (k, latest, deleted) in enumerate(rows):
    w.writerow(["metrics", quote_plus(k, safe="/"), "v%d" % i, latest, deleted, "" if deleted == "true" else "400", "2026-11-22T15:32:53.000Z", "d41d8cd98f00b204e9800998ecf8427e", "STANDARD"])
with gzip.GzipFile("python.csv.gz", "wb", mtime=0) as f:
    f.write(text.getvalue().encode())
