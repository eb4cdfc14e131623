"""Drives a store with boto3 in its default settings. It prints a line for each feature: ok, or FAIL with the reason."""
import hashlib
import io
import os
import sys
import traceback
import urllib.error
import urllib.request

import boto3
from botocore.exceptions import ClientError

endpoint, large, back = sys.argv[1:4]
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
bucket, small = "boto3", b"the quick brown fox jumps over the lazy dog\n"


def get(key, **more):
    return s3.get_object(Bucket=bucket, Key=key, **more)["Body"].read()


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def code(call, **arguments):
    try:
        call(**arguments)
    except ClientError as e:
        return e.response["Error"]["Code"]
    return None


def create():
    s3.create_bucket(Bucket=bucket)
    s3.head_bucket(Bucket=bucket)
    assert bucket in [b["Name"] for b in s3.list_buckets()["Buckets"]]


def put_get():
    s3.put_object(Bucket=bucket, Key="a b/sm+all.txt", Body=small)
    assert get("a b/sm+all.txt") == small
    s3.upload_fileobj(io.BytesIO(b""), bucket, "empty")
    assert get("empty") == b""


def metadata():
    s3.put_object(Bucket=bucket, Key="meta", Body=small, Metadata={"Color": "blue"}, ContentType="text/x-fox", CacheControl="no-store",
                  Tagging="a=1&b=2")
    h = s3.head_object(Bucket=bucket, Key="meta")
    assert h["Metadata"] == {"color": "blue"} and h["ContentType"] == "text/x-fox" and h["CacheControl"] == "no-store", h
    tags = s3.get_object_tagging(Bucket=bucket, Key="meta")["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}], tags


def ranges():
    assert get("meta", Range="bytes=4-8") == small[4:9]
    assert get("meta", Range="bytes=-4") == small[-4:]
    assert code(s3.get_object, Bucket=bucket, Key="meta", Range="bytes=100-") == "InvalidRange"


def conditions():
    assert code(s3.put_object, Bucket=bucket, Key="meta", Body=b"x", IfNoneMatch="*") == "PreconditionFailed"
    etag = s3.head_object(Bucket=bucket, Key="meta")["ETag"]
    assert code(s3.put_object, Bucket=bucket, Key="meta", Body=b"x", IfMatch='"0"') == "PreconditionFailed"
    s3.put_object(Bucket=bucket, Key="meta", Body=small, IfMatch=etag)
    assert code(s3.get_object, Bucket=bucket, Key="meta", IfNoneMatch=etag) == "304"


def copy():
    s3.copy_object(Bucket=bucket, Key="copied", CopySource={"Bucket": bucket, "Key": "a b/sm+all.txt"})
    assert get("copied") == small
    assert code(s3.copy_object, Bucket=bucket, Key="copied", CopySource={"Bucket": bucket, "Key": "absent"}) == "NoSuchKey"


def multipart():
    s3.upload_file(large, bucket, "large")
    assert s3.head_object(Bucket=bucket, Key="large", PartNumber=1)["PartsCount"] > 1
    s3.download_file(bucket, "large", back)
    assert sha256(back) == sha256(large), "other bytes came back"
    s3.copy({"Bucket": bucket, "Key": "large"}, bucket, "large-copy")  # in parts
    s3.download_file(bucket, "large-copy", back)
    assert sha256(back) == sha256(large), "the copy has other bytes"
    up = s3.create_multipart_upload(Bucket=bucket, Key="aborted")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="aborted", UploadId=up, PartNumber=1, Body=small)
    assert [u["UploadId"] for u in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [up]
    s3.abort_multipart_upload(Bucket=bucket, Key="aborted", UploadId=up)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def presigned():
    # boto3 signs URLs of us-east-1 with version 2 unless told otherwise. AWS takes that for old buckets only.
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "copied"})
    if "X-Amz-Signature" not in url:
        try:
            urllib.request.urlopen(url)
            raise AssertionError("signature version 2 was taken")
        except urllib.error.HTTPError as e:
            answer = e.read()
            assert e.code == 400 and b"AWS4-HMAC-SHA256" in answer, answer
    four = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=boto3.session.Config(signature_version="s3v4"))
    url = four.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "copied"})
    assert urllib.request.urlopen(url).read() == small
    url = four.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "by-url"})
    urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT"))
    assert get("by-url") == b"by url"


def listing():
    for i in range(25):
        s3.put_object(Bucket=bucket, Key="many/%02d" % i, Body=b"")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="many/", PaginationConfig={"PageSize": 7})
    assert [o["Key"] for p in pages for o in p["Contents"]] == ["many/%02d" % i for i in range(25)]
    page = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["a b/", "many/"], page


def delete():
    listed = boto3.resource("s3", endpoint_url=endpoint, region_name="us-east-1").Bucket(bucket)
    s3.delete_object(Bucket=bucket, Key="meta")
    assert code(s3.head_object, Bucket=bucket, Key="meta") == "404"
    listed.objects.all().delete()  # DeleteObjects
    s3.delete_bucket(Bucket=bucket)
    assert code(s3.head_bucket, Bucket=bucket) == "404"


for name, run in [("create a bucket", create), ("put and get", put_get), ("metadata", metadata), ("range", ranges), ("conditions", conditions),
                  ("copy", copy), ("multipart", multipart), ("presigned", presigned), ("list", listing), ("delete", delete)]:
    try:
        run()
        print("ok", name, flush=True)
    except Exception:
        print("FAIL", name + ":", " | ".join(traceback.format_exc().splitlines()[-6:]), flush=True)
