package objectstore_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// BenchmarkPut8KiB: conditional PUTs of 8 KiB, fsynced, with a lean client; next to
// it the floor, a plain server that reads the body.
func BenchmarkPut8KiB(b *testing.B) {
	s := start(b, testConfig(b.TempDir()))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	plain := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}
	go func() { _ = plain.Serve(l) }()
	b.Cleanup(func() { _ = plain.Close() })
	body := random(8 << 10)
	var n atomic.Int64
	for _, target := range []struct{ name, url string }{{"store", s.url()}, {"floor", "http://" + l.Addr().String()}} {
		for _, clients := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/clients=%d", target.name, clients), func(b *testing.B) {
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.SetBytes(int64(len(body)))
				b.ResetTimer()
				for range clients {
					wg.Add(1)
					go func() {
						defer wg.Done()
						for left.Add(-1) >= 0 {
							r := newSigner().request("PUT", fmt.Sprintf("%s/%s/bench/%016d", target.url, bucket, n.Add(1)), body, "If-None-Match", "*")
							resp, err := client.Do(r)
							if err != nil {
								b.Error(err)
								return
							}
							_, _ = io.Copy(io.Discard, resp.Body)
							_ = resp.Body.Close()
							if resp.StatusCode != 200 {
								b.Error(resp.Status)
								return
							}
						}
					}()
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "put/s")
			})
		}
	}
}
