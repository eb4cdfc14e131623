package s3clients

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// small is a body that is read back in many ways.
var small = []byte("the quick brown fox jumps over the lazy dog\n")

// files writes the small body and a tree into a tool's directory.
func (x *tool) files(t *testing.T) (file, dir string) {
	t.Helper()
	file, dir = filepath.Join(x.dir, "small.txt"), filepath.Join(x.dir, "tree")
	if err := os.WriteFile(file, small, 0o644); err != nil {
		t.Fatal(err)
	}
	sample().write(t, dir)
	return file, dir
}

func wantBytes(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s has %d other bytes", path, len(got))
	}
}

func wantContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Fatalf("%q is not in\n%s", p, text)
		}
	}
}

func TestAWSCLI(t *testing.T) {
	need(t, "aws-cli", "aws")
	x := newTool(t, "AWS_ENDPOINT_URL="+endpoint, "AWS_DEFAULT_REGION=us-east-1", "AWS_PAGER=")
	// A shim that needs its user's home says nothing about the store.
	version, err := x.try("aws", "--version")
	if err != nil {
		skip(t, "aws-cli", "aws --version: "+firstLine(err.Error()))
	}
	const bucket = "aws-cli"
	file, dir := x.files(t)
	back := filepath.Join(x.dir, "back")
	play(t, "aws-cli", firstField(strings.TrimPrefix(version, "aws-cli/")),
		step{"create a bucket", func(t *testing.T) { x.run(t, "aws", "s3", "mb", "s3://"+bucket) }},
		step{"put and get", func(t *testing.T) {
			x.run(t, "aws", "s3", "cp", file, "s3://"+bucket+"/a b/sm+all.txt")
			x.run(t, "aws", "s3", "cp", "s3://"+bucket+"/a b/sm+all.txt", back)
			wantBytes(t, back, small)
		}},
		step{"metadata", func(t *testing.T) {
			x.run(t, "aws", "s3", "cp", file, "s3://"+bucket+"/meta", "--metadata", "color=blue,Size=big", "--content-type", "text/x-fox", "--cache-control", "no-store")
			out := x.run(t, "aws", "s3api", "head-object", "--bucket", bucket, "--key", "meta")
			wantContains(t, out, `"color": "blue"`, `"size": "big"`, "text/x-fox", "no-store")
		}},
		step{"range", func(t *testing.T) {
			x.run(t, "aws", "s3api", "get-object", "--bucket", bucket, "--key", "meta", "--range", "bytes=4-8", back)
			wantBytes(t, back, small[4:9])
		}},
		step{"copy", func(t *testing.T) {
			x.run(t, "aws", "s3", "cp", "s3://"+bucket+"/a b/sm+all.txt", "s3://"+bucket+"/copied")
			wantObject(t, bucket, "copied", hashFile(t, file))
		}},
		step{"multipart", func(t *testing.T) {
			l := makeLarge(t)
			x.run(t, "aws", "s3", "cp", "--only-show-errors", l.path, "s3://"+bucket+"/large")
			wantObject(t, bucket, "large", l.sha256)
			wantParts(t, bucket, "large")
			x.run(t, "aws", "s3", "cp", "--only-show-errors", "s3://"+bucket+"/large", back)
			if hashFile(t, back) != l.sha256 {
				t.Fatal("other bytes came back")
			}
			x.run(t, "aws", "s3", "mv", "--only-show-errors", "s3://"+bucket+"/large", "s3://"+bucket+"/moved") // copies in parts
			wantObject(t, bucket, "moved", l.sha256)
			x.run(t, "aws", "s3", "rm", "s3://"+bucket+"/moved")
		}},
		step{"presigned", func(t *testing.T) {
			// Version 1 of this client signs URLs of us-east-1 with signature version 2 unless told otherwise, which AWS
			// takes for old buckets only.
			url := strings.TrimSpace(x.run(t, "aws", "s3", "presign", "s3://"+bucket+"/copied"))
			if !strings.Contains(url, "X-Amz-Signature") {
				if status, b := fetch(t, url); status != 400 || !bytes.Contains(b, []byte("AWS4-HMAC-SHA256")) {
					t.Fatalf("%d %s", status, b)
				}
				x.run(t, "aws", "configure", "set", "default.s3.signature_version", "s3v4")
				url = strings.TrimSpace(x.run(t, "aws", "s3", "presign", "s3://"+bucket+"/copied"))
			}
			if status, b := fetch(t, url); status != 200 || !bytes.Equal(b, small) {
				t.Fatalf("%d %s", status, b)
			}
		}},
		step{"sync with deletes", func(t *testing.T) {
			to := "s3://" + bucket + "/sync"
			x.run(t, "aws", "s3", "sync", dir, to)
			sample().wantBelow(t, bucket, "sync/")
			now := sample().change(t, dir)
			x.run(t, "aws", "s3", "sync", "--delete", dir, to)
			now.wantBelow(t, bucket, "sync/")
			down := filepath.Join(x.dir, "down")
			x.run(t, "aws", "s3", "sync", to, down)
			now.wantIn(t, down)
		}},
		step{"list", func(t *testing.T) {
			wantContains(t, x.run(t, "aws", "s3", "ls", "s3://"+bucket+"/sync/"), "PRE sub/", "with space.txt")
			var page struct{ Contents []struct{ Key string } }
			if err := json.Unmarshal([]byte(x.run(t, "aws", "s3api", "list-objects-v2", "--bucket", bucket, "--page-size", "2", "--output", "json")), &page); err != nil {
				t.Fatal(err)
			}
			if got := len(keysOf(t, bucket, "")); len(page.Contents) != got {
				t.Fatalf("%d keys in pages of 2, there are %d", len(page.Contents), got)
			}
		}},
		step{"delete", func(t *testing.T) { x.run(t, "aws", "s3", "rb", "--force", "s3://"+bucket) }},
	)
}

func TestS3cmd(t *testing.T) {
	need(t, "s3cmd", "s3cmd")
	x := newTool(t)
	host := strings.TrimPrefix(endpoint, "http://")
	conf := filepath.Join(x.dir, "s3cfg")
	// What "s3cmd --configure" asks for; the rest are its defaults.
	text := "[default]\naccess_key = " + accessKey + "\nsecret_key = " + secretKey + "\nhost_base = " + host + "\nhost_bucket = " + host + "\nuse_https = False\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s3cmd := func(t *testing.T, args ...string) string {
		t.Helper()
		return x.run(t, "s3cmd", append([]string{"-c", conf, "--no-progress"}, args...)...)
	}
	const bucket = "s3cmd"
	file, dir := x.files(t)
	back := filepath.Join(x.dir, "back")
	play(t, "s3cmd", firstField(strings.TrimPrefix(x.run(t, "s3cmd", "--version"), "s3cmd version ")),
		step{"create a bucket", func(t *testing.T) { s3cmd(t, "mb", "s3://"+bucket) }},
		step{"put and get", func(t *testing.T) {
			s3cmd(t, "put", file, "s3://"+bucket+"/a b/sm+all.txt")
			s3cmd(t, "get", "s3://"+bucket+"/a b/sm+all.txt", back)
			wantBytes(t, back, small)
		}},
		step{"metadata", func(t *testing.T) {
			s3cmd(t, "put", "--add-header=x-amz-meta-color:blue", "--mime-type=text/x-fox", file, "s3://"+bucket+"/meta")
			wantContains(t, s3cmd(t, "info", "s3://"+bucket+"/meta"), "x-amz-meta-color: blue", "text/x-fox")
		}},
		step{"range", func(t *testing.T) { // it goes on with a download that was cut off
			if err := os.WriteFile(back, small[:20], 0o644); err != nil {
				t.Fatal(err)
			}
			s3cmd(t, "get", "--continue", "s3://"+bucket+"/a b/sm+all.txt", back)
			wantBytes(t, back, small)
		}},
		step{"copy", func(t *testing.T) {
			args := []string{"-c", conf, "cp", "s3://" + bucket + "/a b/sm+all.txt", "s3://" + bucket + "/copied"}
			if _, err := x.try("s3cmd", args...); err != nil && strings.Contains(err.Error(), "AccessControlListNotSupported") {
				// It asks for the ACL "private" with every copy, and a new bucket has no ACLs, until its owner turns them on.
				if _, err := sdk().PutBucketOwnershipControls(ctx, &s3.PutBucketOwnershipControlsInput{Bucket: aws.String(bucket), OwnershipControls: &types.OwnershipControls{
					Rules: []types.OwnershipControlsRule{{ObjectOwnership: types.ObjectOwnershipBucketOwnerPreferred}}}}); err != nil {
					t.Fatal(err)
				}
				x.run(t, "s3cmd", args...)
			} else if err != nil {
				t.Fatal(err)
			}
			wantObject(t, bucket, "copied", hashFile(t, file))
		}},
		step{"multipart", func(t *testing.T) {
			l := makeLarge(t)
			s3cmd(t, "put", l.path, "s3://"+bucket+"/large")
			wantObject(t, bucket, "large", l.sha256)
			wantParts(t, bucket, "large")
			s3cmd(t, "get", "--force", "s3://"+bucket+"/large", back)
			if hashFile(t, back) != l.sha256 {
				t.Fatal("other bytes came back")
			}
			s3cmd(t, "del", "s3://"+bucket+"/large")
		}},
		step{"sync with deletes", func(t *testing.T) {
			to := "s3://" + bucket + "/sync/"
			s3cmd(t, "sync", dir+"/", to)
			sample().wantBelow(t, bucket, "sync/")
			now := sample().change(t, dir)
			s3cmd(t, "sync", "--delete-removed", dir+"/", to)
			now.wantBelow(t, bucket, "sync/")
			down := filepath.Join(x.dir, "down")
			if err := os.Mkdir(down, 0o755); err != nil {
				t.Fatal(err)
			}
			s3cmd(t, "sync", to, down+"/")
			now.wantIn(t, down)
		}},
		step{"list", func(t *testing.T) {
			wantContains(t, s3cmd(t, "ls", "s3://"+bucket+"/sync/"), "DIR", "/sync/sub/", "with space.txt")
			wantContains(t, s3cmd(t, "du", "s3://"+bucket), strconv.Itoa(len(keysOf(t, bucket, ""))))
		}},
		step{"delete", func(t *testing.T) {
			s3cmd(t, "del", "--recursive", "--force", "s3://"+bucket)
			s3cmd(t, "rb", "s3://"+bucket)
		}},
	)
}

func TestRclone(t *testing.T) {
	need(t, "rclone", "rclone")
	x := newTool(t, "RCLONE_CONFIG_LM_TYPE=s3", "RCLONE_CONFIG_LM_PROVIDER=Other", "RCLONE_CONFIG_LM_ENDPOINT="+endpoint,
		"RCLONE_CONFIG_LM_ACCESS_KEY_ID="+accessKey, "RCLONE_CONFIG_LM_SECRET_ACCESS_KEY="+secretKey, "RCLONE_CONFIG=/dev/null")
	const bucket = "rclone"
	file, dir := x.files(t)
	play(t, "rclone", firstField(strings.TrimPrefix(x.run(t, "rclone", "version"), "rclone ")),
		step{"create a bucket", func(t *testing.T) { x.run(t, "rclone", "mkdir", "lm:"+bucket) }},
		step{"put and get", func(t *testing.T) {
			x.run(t, "rclone", "copyto", file, "lm:"+bucket+"/a b/sm+all.txt")
			if got := x.run(t, "rclone", "cat", "lm:"+bucket+"/a b/sm+all.txt"); got != string(small) {
				t.Fatalf("%q", got)
			}
		}},
		step{"metadata", func(t *testing.T) { // it keeps a file's time of change there, and copies an object onto itself to set it
			x.run(t, "rclone", "touch", "-t", "2021-02-03T04:05:06", "lm:"+bucket+"/a b/sm+all.txt")
			wantContains(t, x.run(t, "rclone", "lsl", "lm:"+bucket), "2021-02-03 04:05:06")
		}},
		step{"range", func(t *testing.T) {
			if got := x.run(t, "rclone", "cat", "--offset", "4", "--count", "5", "lm:"+bucket+"/a b/sm+all.txt"); got != string(small[4:9]) {
				t.Fatalf("%q", got)
			}
		}},
		step{"copy", func(t *testing.T) {
			x.run(t, "rclone", "copyto", "lm:"+bucket+"/a b/sm+all.txt", "lm:"+bucket+"/copied")
			wantObject(t, bucket, "copied", hashFile(t, file))
		}},
		step{"multipart", func(t *testing.T) {
			l := makeLarge(t)
			args := []string{"copyto", l.path, "lm:" + bucket + "/large"}
			if l.size < 200<<20 { // its default for parts
				args = append(args, "--s3-upload-cutoff=16M")
			}
			x.run(t, "rclone", args...)
			wantObject(t, bucket, "large", l.sha256)
			wantParts(t, bucket, "large")
			back := filepath.Join(x.dir, "back")
			x.run(t, "rclone", "copyto", "lm:"+bucket+"/large", back)
			if hashFile(t, back) != l.sha256 {
				t.Fatal("other bytes came back")
			}
			x.run(t, "rclone", "deletefile", "lm:"+bucket+"/large")
		}},
		step{"presigned", func(t *testing.T) {
			status, b := fetch(t, strings.TrimSpace(x.run(t, "rclone", "link", "lm:"+bucket+"/copied")))
			if status != 200 || !bytes.Equal(b, small) {
				t.Fatalf("%d %s", status, b)
			}
		}},
		step{"sync with deletes", func(t *testing.T) {
			to := "lm:" + bucket + "/sync"
			x.run(t, "rclone", "sync", dir, to)
			sample().wantBelow(t, bucket, "sync/")
			now := sample().change(t, dir)
			x.run(t, "rclone", "sync", dir, to)
			now.wantBelow(t, bucket, "sync/")
			x.run(t, "rclone", "check", "--download", dir, to)
			down := filepath.Join(x.dir, "down")
			x.run(t, "rclone", "sync", to, down)
			now.wantIn(t, down)
		}},
		step{"list", func(t *testing.T) {
			wantContains(t, x.run(t, "rclone", "lsf", "lm:"+bucket+"/sync"), "sub/", "with space.txt")
		}},
		step{"delete", func(t *testing.T) { x.run(t, "rclone", "purge", "lm:"+bucket) }},
	)
}

func TestRestic(t *testing.T) {
	need(t, "restic", "restic")
	x := newTool(t, "RESTIC_REPOSITORY=s3:"+endpoint+"/restic/repo", "RESTIC_PASSWORD=of-the-test")
	_, dir := x.files(t)
	now := sample()
	play(t, "restic", regexp.MustCompile(`[0-9.]+`).FindString(x.run(t, "restic", "version")),
		step{"create a bucket", func(t *testing.T) { x.run(t, "restic", "init") }},
		step{"backup", func(t *testing.T) {
			l := makeLarge(t)
			b, err := os.ReadFile(l.path)
			if err != nil {
				t.Fatal(err)
			}
			tree{"large.bin": b}.write(t, dir)
			x.run(t, "restic", "backup", "tree")
			if err := os.Remove(filepath.Join(dir, "large.bin")); err != nil {
				t.Fatal(err)
			}
			now = now.change(t, dir)
			x.run(t, "restic", "backup", "tree")
		}},
		step{"check", func(t *testing.T) { x.run(t, "restic", "check", "--read-data") }},
		step{"restore", func(t *testing.T) {
			to := filepath.Join(x.dir, "restored")
			x.run(t, "restic", "restore", "latest", "--target", to)
			now.wantIn(t, filepath.Join(to, "tree"))
		}},
		step{"prune", func(t *testing.T) {
			before := len(keysOf(t, "restic", "repo/data/"))
			x.run(t, "restic", "forget", "--keep-last", "1", "--prune", "--max-unused", "0")
			if after := len(keysOf(t, "restic", "repo/data/")); after >= before {
				t.Fatalf("%d packs before, %d after", before, after)
			}
			x.run(t, "restic", "check", "--read-data")
			to := filepath.Join(x.dir, "again")
			x.run(t, "restic", "restore", "latest", "--target", to)
			now.wantIn(t, filepath.Join(to, "tree"))
		}},
	)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func firstField(s string) string {
	if f := strings.Fields(s); len(f) > 0 {
		return f[0]
	}
	return ""
}
