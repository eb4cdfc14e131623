package objectstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// TestClientsThatGoAway: uploads and downloads that end in the middle harm nobody else's bytes, although the store uses
// memory of requests and of records again.
func TestClientsThatGoAway(t *testing.T) {
	srv := start(t, testConfig(t.TempDir()))
	pattern := func(key string, n int) []byte {
		b := bytes.Repeat([]byte(key+"|"), n/(len(key)+1)+1)
		return b[:n]
	}
	sizes := []int{0, 10, 3000, 20_000, 70_000, 300_000, 1_500_000}
	var good atomic.Int64
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(worker)))
			c := srv.client()
			for i := range 40 {
				key := fmt.Sprintf("w%d/%d", worker, i%7)
				n := sizes[rnd.IntN(len(sizes))]
				ctx, cancel := context.WithCancel(context.Background())
				cut := rnd.IntN(4) == 0
				if cut {
					time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, cancel)
				}
				_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(pattern(key, n))})
				if err != nil && !cut {
					t.Errorf("PUT %s of %d: %v", key, n, err)
				}
				out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &key})
				if err == nil {
					b, rerr := io.ReadAll(out.Body)
					out.Body.Close()
					if rerr == nil && !bytes.Equal(b, pattern(key, len(b))) {
						t.Errorf("GET %s: other bytes", key)
					}
					if rerr == nil {
						good.Add(1)
					} else if !cut {
						t.Errorf("GET %s: %v", key, rerr)
					}
				} else if !cut {
					if name, _ := code(err); name != "NoSuchKey" {
						t.Errorf("GET %s: %v", key, err)
					}
				}
				cancel()
				if rnd.IntN(5) == 0 { // no S3 at all
					if nc, err := net.Dial("tcp", srv.Addr()); err == nil {
						_, _ = io.WriteString(nc, []string{"PUT /bucket-one/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc", "GET", "\x16\x03\x01", "PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n"}[rnd.IntN(4)])
						_ = nc.Close()
					}
				}
			}
		})
	}
	wg.Wait()
	if good.Load() < 60 {
		t.Errorf("only %d reads", good.Load())
	}
}
