// Drives a store with the AWS SDK for JavaScript in its default settings. It prints a line for each feature: ok, or FAIL
// with the reason.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import * as s3 from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const [endpoint, large, back] = process.argv.slice(2);
const bucket = "javascript";
const Bucket = bucket;
const small = "the quick brown fox jumps over the lazy dog\n";
const client = new s3.S3Client({ endpoint, region: "us-east-1", forcePathStyle: true });
const send = (Command, input) => client.send(new Command({ Bucket, ...input }));
const get = async (Key, more) => (await send(s3.GetObjectCommand, { Key, ...more })).Body.transformToString();

async function sha256(path) {
  const h = createHash("sha256");
  await pipeline(createReadStream(path), h);
  return h.digest("hex");
}

const refused = (promise, name) => assert.rejects(promise, (e) => e.name === name || assert.fail(`${e.name}: ${e.message}`));

const features = {
  "create a bucket": async () => {
    await send(s3.CreateBucketCommand);
    await send(s3.HeadBucketCommand);
    const list = await client.send(new s3.ListBucketsCommand({}));
    assert(list.Buckets.some((b) => b.Name === bucket));
  },
  "put and get": async () => {
    await send(s3.PutObjectCommand, { Key: "a b/sm+all.txt", Body: small });
    assert.equal(await get("a b/sm+all.txt"), small);
    await send(s3.PutObjectCommand, { Key: "empty", Body: "" });
    assert.equal(await get("empty"), "");
  },
  metadata: async () => {
    await send(s3.PutObjectCommand, { Key: "meta", Body: small, Metadata: { Color: "blue" }, ContentType: "text/x-fox", Tagging: "a=1" });
    const head = await send(s3.HeadObjectCommand, { Key: "meta" });
    assert.deepEqual([head.Metadata, head.ContentType], [{ color: "blue" }, "text/x-fox"]);
    assert.deepEqual((await send(s3.GetObjectTaggingCommand, { Key: "meta" })).TagSet, [{ Key: "a", Value: "1" }]);
  },
  range: async () => {
    assert.equal(await get("meta", { Range: "bytes=4-8" }), small.slice(4, 9));
    await refused(get("meta", { Range: "bytes=100-" }), "InvalidRange");
  },
  conditions: async () => {
    await refused(send(s3.PutObjectCommand, { Key: "meta", Body: "x", IfNoneMatch: "*" }), "PreconditionFailed");
    const { ETag } = await send(s3.HeadObjectCommand, { Key: "meta" });
    await refused(send(s3.PutObjectCommand, { Key: "meta", Body: "x", IfMatch: '"0"' }), "PreconditionFailed");
    await send(s3.PutObjectCommand, { Key: "meta", Body: small, IfMatch: ETag });
  },
  copy: async () => {
    await send(s3.CopyObjectCommand, { Key: "copied", CopySource: `${bucket}/${encodeURIComponent("a b/sm+all.txt")}` });
    assert.equal(await get("copied"), small);
  },
  multipart: async () => {
    await new Upload({ client, params: { Bucket, Key: "large", Body: createReadStream(large) } }).done();
    assert((await send(s3.HeadObjectCommand, { Key: "large", PartNumber: 1 })).PartsCount > 1);
    await pipeline((await send(s3.GetObjectCommand, { Key: "large" })).Body, createWriteStream(back));
    assert.equal(await sha256(back), await sha256(large));
  },
  presigned: async () => {
    const read = await fetch(await getSignedUrl(client, new s3.GetObjectCommand({ Bucket, Key: "copied" })));
    assert.deepEqual([read.status, await read.text()], [200, small]);
    const url = await getSignedUrl(client, new s3.PutObjectCommand({ Bucket, Key: "by-url" }));
    assert.equal((await fetch(url, { method: "PUT", body: "by url" })).status, 200);
    assert.equal(await get("by-url"), "by url");
  },
  list: async () => {
    for (let i = 0; i < 12; i++) await send(s3.PutObjectCommand, { Key: `many/${i + 10}`, Body: "" });
    const keys = [];
    for await (const page of s3.paginateListObjectsV2({ client, pageSize: 5 }, { Bucket, Prefix: "many/" })) keys.push(...page.Contents.map((o) => o.Key));
    assert.equal(keys.length, 12);
    assert.deepEqual((await send(s3.ListObjectsV2Command, { Delimiter: "/" })).CommonPrefixes.map((p) => p.Prefix), ["a b/", "many/"]);
  },
  delete: async () => {
    await send(s3.DeleteObjectCommand, { Key: "meta" });
    await refused(send(s3.HeadObjectCommand, { Key: "meta" }), "NotFound");
    const all = await send(s3.ListObjectsV2Command);
    await send(s3.DeleteObjectsCommand, { Delete: { Objects: all.Contents.map(({ Key }) => ({ Key })) } });
    await send(s3.DeleteBucketCommand);
  },
};

for (const [name, run] of Object.entries(features)) {
  try {
    await run();
    console.log("ok", name);
  } catch (e) {
    console.log("FAIL", `${name}:`, String(e.stack).split("\n").slice(0, 4).join(" | "));
  }
}
