// Writes arrow.parquet with the writer of arrow-rs: npm i parquet-wasm@0.8.0 apache-arrow@21.2.0; node write.mjs
import * as arrow from "apache-arrow";
import { createRequire } from "module";
const require = createRequire(import.meta.url);
const pq = require("parquet-wasm");
import fs from "fs";
const hex = s => Buffer.from(s).toString("hex");
const rows = [];
const key = (a,n)=>`prod/accepted/v1/agent=${hex(a)}/boot=${hex("boot")}/${String(n*10).padStart(20,"0")}-${String(n*10+9).padStart(20,"0")}.json`;
for (let i=0;i<30;i++) rows.push([key("host"+(i%3),Math.floor(i/3)), true,false]);
rows.push([key("host0",50), false,false]); rows.push([key("host0",51), true,true]); rows.push(["other/x y+z.json",true,false]); rows.push(["prod/raw-blobs/v1/sha256/aa", true,false]);
const v=(a,t)=>arrow.vectorFromArray(a,t);
const t = new arrow.Table({
  bucket: v(rows.map(_=>"metrics"), new arrow.Utf8()),
  key: v(rows.map(r=>r[0]), new arrow.Utf8()),
  version_id: v(rows.map((_,i)=>"v"+i), new arrow.Utf8()),
  is_latest: v(rows.map(r=>r[1]), new arrow.Bool()),
  is_delete_marker: v(rows.map(r=>r[2]), new arrow.Bool()),
  size: v(rows.map(r=>r[2]?null:400n), new arrow.Int64()),
  last_modified_date: v(rows.map(_=>1795361573000), new arrow.TimestampMillisecond("UTC")),
  e_tag: v(rows.map(_=>"d41d8cd98f00b204e9800998ecf8427e"), new arrow.Utf8()),
  storage_class: v(rows.map(_=>"STANDARD"), new arrow.Utf8()),
});
const w = pq.Table.fromIPCStream(arrow.tableToIPC(t,"stream"));
const props = new pq.WriterPropertiesBuilder().setCompression(pq.Compression.SNAPPY).setMaxRowGroupSize(10).build();
fs.writeFileSync("arrow.parquet", pq.writeParquet(w, props));
