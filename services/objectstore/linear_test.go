package objectstore_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// keyOp is a request for one key: what it writes, and on which condition. etag is "" for a read and a delete.
type keyOp struct {
	kind  string // put, copy, complete, delete, read
	none  bool   // If-None-Match: *
	match string // If-Match; "" none
	etag  string
}

// keyState is the ETag of the object; "" is none. It is the output of a read too.
type keyState string

// keyModel is what AWS documents of conditions, one key for itself.
var keyModel = porcupine.Model{
	Init: func() any { return keyState("") },
	Step: func(state, input, output any) (bool, any) {
		now, op := state.(keyState), input.(keyOp)
		if op.kind == "read" {
			return output == any(now), now
		}
		want := 200
		switch {
		case op.none && now != "":
			want = 412
		case op.match != "" && now == "":
			want = 404
		case op.match != "" && op.match != string(now):
			want = 412
		}
		if want != 200 {
			return output == any(want), now
		}
		return output == any(200), keyState(op.etag)
	},
}

// TestConditionsAreLinearizable: clients write, copy, complete uploads of, delete and read the same keys at the same
// time, with and without conditions. For each key one order explains all answers.
func TestConditionsAreLinearizable(t *testing.T) {
	for _, status := range []types.BucketVersioningStatus{"", "Enabled", "Suspended"} {
		t.Run("versioning"+string(status), func(t *testing.T) {
			s := start(t, testConfig(t.TempDir()))
			if status != "" {
				setVersioning(t, s.client(), status)
			}
			checkLinear(t, s)
		})
	}
}

func checkLinear(t *testing.T, s *server) {
	const keys, clients, each = 6, 6, 10
	for k := range keys {
		key := fmt.Sprintf("linear/%d", k)
		var mu sync.Mutex
		var ops []porcupine.Operation
		var seen []string // ETags that a condition may name
		var wg sync.WaitGroup
		for n := range clients {
			wg.Go(func() {
				c := s.client()
				rng := rand.New(rand.NewPCG(uint64(k), uint64(n)))
				for i := range each {
					body := fmt.Appendf(nil, "%d-%d-%d", k, n, i)
					op, run := drawOp(t, c, key, body, rng, func() string {
						mu.Lock()
						defer mu.Unlock()
						if len(seen) == 0 {
							return "0123456789abcdef0123456789abcdef"
						}
						return seen[len(seen)-1-rng.IntN(min(3, len(seen)))]
					})
					from := time.Now().UnixNano()
					out := run()
					to := time.Now().UnixNano()
					mu.Lock()
					ops = append(ops, porcupine.Operation{ClientId: n, Input: op, Call: from, Return: to, Output: out})
					if out == any(200) && op.etag != "" {
						seen = append(seen, op.etag)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if !porcupine.CheckOperations(keyModel, ops) {
			t.Errorf("%s: no order explains these answers: %+v", key, ops)
		}
	}
}

// drawOp gives a random request and what sends it. Everything that comes before the deciding request is done here.
func drawOp(t *testing.T, c *s3.Client, key string, body []byte, rng *rand.Rand, known func() string) (keyOp, func() any) {
	op := keyOp{kind: []string{"put", "copy", "complete", "complete", "delete", "read"}[rng.IntN(6)]}
	switch rng.IntN(3) {
	case 0:
		op.none = op.kind != "delete"
	case 1:
		op.match = known()
	}
	return op.prepare(t, c, key, body)
}

// prepare gives the request with the ETag that it writes, and what sends it. The parts of an upload are stored here, and
// the source of a copy.
func (op keyOp) prepare(t testing.TB, c *s3.Client, key string, body []byte) (keyOp, func() any) {
	sum := md5.Sum(body)
	op.etag = hex.EncodeToString(sum[:])
	var none, match *string
	if op.none {
		none = aws.String("*")
	}
	if op.match != "" {
		match = &op.match
	}
	answer := func(err error) any {
		if err == nil {
			return 200
		}
		_, status := code(err)
		return status
	}
	in := aws.String(bucket)
	switch op.kind {
	case "put":
		return op, func() any {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: in, Key: &key, Body: bytes.NewReader(body), IfNoneMatch: none, IfMatch: match})
			return answer(err)
		}
	case "copy":
		from := "source/" + op.etag
		put(t, c, from, body)
		return op, func() any {
			_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: in, Key: &key, CopySource: aws.String(bucket + "/" + from), IfNoneMatch: none, IfMatch: match})
			return answer(err)
		}
	case "complete":
		id, parts := upload(t, c, key, body)
		tag := md5.Sum(sum[:])
		op.etag = hex.EncodeToString(tag[:]) + "-1"
		return op, func() any {
			_, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: in, Key: &key, UploadId: &id,
				MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}, IfNoneMatch: none, IfMatch: match})
			return answer(err)
		}
	case "delete":
		op.etag = ""
		return op, func() any {
			_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: in, Key: &key, IfMatch: match})
			return answer(err)
		}
	}
	return keyOp{kind: "read"}, func() any {
		out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: in, Key: &key})
		if _, status := code(err); status == 404 {
			return keyState("")
		} else if err != nil {
			return answer(err)
		}
		return keyState(unquoted(out.ETag))
	}
}

func unquoted(s *string) string { return string(bytes.Trim([]byte(aws.ToString(s)), `"`)) }

// upload begins an upload and stores its parts.
func upload(t testing.TB, c *s3.Client, key string, bodies ...[]byte) (id string, parts []types.CompletedPart) {
	t.Helper()
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: &key})
	if err != nil {
		t.Error(err)
		return "", nil
	}
	for i, b := range bodies {
		n := aws.Int32(int32(i + 1))
		p, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: &key, UploadId: up.UploadId, PartNumber: n, Body: bytes.NewReader(b)})
		if err != nil {
			t.Error(err)
			return "", nil
		}
		parts = append(parts, types.CompletedPart{ETag: p.ETag, PartNumber: n})
	}
	return *up.UploadId, parts
}
