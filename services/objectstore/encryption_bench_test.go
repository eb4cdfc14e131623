//go:build unix

package objectstore_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// BenchmarkEncryption compares a store that encrypts with one that does not, side by side in one process: the same
// requests to each in turn, A B B A, fsynced. The ratios are medians of the pairs, of the time and of the CPU time of the
// whole process, the lean client's too.
func BenchmarkEncryption(b *testing.B) {
	dir := b.TempDir()
	plain := testConfig(dir + "/plain")
	sealed := testConfig(dir + "/sealed")
	sealed.Encryption.Keys = []objectstore.EncryptionKey{{ID: "one", Command: []string{"printf", "%064d", "7"}}}
	sealed.Encryption.Current = "one"
	stores := []*server{start(b, plain), start(b, sealed)}
	n := 0
	for _, c := range []struct {
		method string
		size   int
		times  int
	}{{"PUT", 8 << 10, 200}, {"GET", 8 << 10, 400}, {"PUT", 1 << 20, 24}, {"GET", 1 << 20, 48}, {"PUT", 8 << 20, 6}, {"GET", 8 << 20, 12}} {
		body := random(c.size)
		for _, s := range stores {
			put(b, s.client(), fmt.Sprint(c.size), body)
		}
		b.Run(fmt.Sprintf("%s/%dKiB", c.method, c.size>>10), func(b *testing.B) {
			var wall, cpu []float64
			round := func(s *server) (float64, float64) {
				requests := make([][]byte, c.times)
				for i := range requests {
					if c.method == "GET" {
						requests[i] = wire(b, newSigner().request("GET", fmt.Sprintf("%s/%s/%d", s.url(), bucket, c.size), nil), nil)
						continue
					}
					n++
					requests[i] = wire(b, newSigner().request("PUT", fmt.Sprintf("%s/%s/put/%d/%d", s.url(), bucket, c.size, n%16), body), body)
				}
				began, used := time.Now(), processCPU(b)
				sendAll(b, s.Addr(), requests, 4)
				return float64(time.Since(began)), float64(processCPU(b) - used)
			}
			for range b.N {
				for _, order := range [][2]int{{0, 1}, {1, 0}} {
					var t, u [2]float64
					for _, i := range order {
						t[i], u[i] = round(stores[i])
					}
					wall, cpu = append(wall, t[1]/t[0]), append(cpu, u[1]/u[0])
				}
			}
			slices.Sort(wall)
			slices.Sort(cpu)
			b.ReportMetric(wall[len(wall)/2], "time-ratio")
			b.ReportMetric(cpu[len(cpu)/2], "cpu-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// sendAll sends requests over so many connections.
func sendAll(b *testing.B, addr string, requests [][]byte, clients int) {
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			in := bufio.NewReaderSize(c, 64<<10)
			for j := i; j < len(requests); j += clients {
				if err := exchange(c, in, requests[j]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
