package s3

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// TestAnswersOfAHostileServer: whatever a server does with a connection: answers late, twice, in pieces, with interim
// answers, in chunks, with a body where none belongs, or not at all, a request of the plain path gets the answer to
// itself or an error. The server gives each key as the ETag and the body of its object.
func TestAnswersOfAHostileServer(t *testing.T) {
	const late = 200 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	var conns atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := conns.Add(1)
			go func() {
				defer c.Close()
				in, rnd := bufio.NewReader(c), rand.New(rand.NewPCG(1, uint64(n)))
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					key := strings.TrimPrefix(r.URL.Path, "/bucket/")
					body := key
					if r.Method != http.MethodGet {
						body = ""
					}
					if rnd.IntN(8) == 0 { // before the body of the request was read
						fmt.Fprintf(c, "HTTP/1.1 412 Precondition Failed\r\nETag: %q\r\nContent-Length: 0\r\n\r\n", key)
						if rnd.IntN(2) == 0 {
							return
						}
						_, _ = io.Copy(io.Discard, r.Body)
						continue
					}
					_, _ = io.Copy(io.Discard, r.Body)
					plain := fmt.Sprintf("HTTP/1.1 200 OK\r\nETag: %q\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
					var parts []string
					switch rnd.IntN(14) {
					case 0: // in the middle of the head, and of the body
						at := 1 + rnd.IntN(len(plain)-1)
						parts = []string{plain[:at], plain[at:]}
					case 1:
						parts = []string{"HTTP/1.1 100 Continue\r\n\r\n" + plain}
					case 2:
						parts = []string{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", plain}
					case 3:
						parts = []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nETag: %q\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nA: b\r\n\r\n", key, len(key), key)}
					case 4:
						parts = []string{plain + "HTTP/1.1 200 OK\r\nETag: \"stray\"\r\nContent-Length: 5\r\n\r\nstray"}
					case 6:
						time.Sleep(late)
						parts = []string{plain}
					case 7: // late in the middle
						at := 1 + rnd.IntN(len(plain)-1)
						_, _ = io.WriteString(c, plain[:at])
						time.Sleep(late)
						parts = []string{plain[at:]}
					case 8:
						at := 1 + rnd.IntN(len(plain)-1)
						_, _ = io.WriteString(c, plain[:at])
						return
					case 9:
						return
					case 10: // a body where none belongs
						parts = []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nETag: %q\r\nContent-Length: 5\r\n\r\nstray", key)}
					case 11:
						parts = []string{strings.ToLower(fmt.Sprintf("ETAG: %q\r\nCONTENT-LENGTH: %d\r\nconnection: CLOSE\r\n", key, len(body)))}
						parts[0] = "HTTP/1.1 200 OK\r\n" + parts[0] + "\r\n" + body
					default:
						parts = []string{plain}
					}
					for i, p := range parts {
						if i > 0 {
							time.Sleep(time.Millisecond)
						}
						if _, err := io.WriteString(c, p); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	cfg := testConfig("http://" + l.Addr().String())
	cfg.MaxConnections = 8
	st, err := New(t.Context(), cfg, Options{})
	must(t, err)
	defer st.Close()
	bounded := objstore.Deadline(st, late/2)
	var good, failed atomic.Int64
	var wg sync.WaitGroup
	for worker := range 12 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(worker)))
			for i := range 150 {
				key := fmt.Sprintf("w%d-%d", worker, i)
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(10) == 0 {
					time.AfterFunc(time.Duration(rnd.IntN(2000))*time.Microsecond, cancel)
				}
				var info objstore.Info
				var err error
				switch kind := rnd.IntN(4); kind {
				case 0:
					var b []byte
					b, info, err = bounded.Get(ctx, key, objstore.GetOptions{})
					if err == nil && string(b) != key && string(b) != "stray" { // an answer of its own may have that body
						t.Errorf("GET %s: %q", key, b)
					}
				case 1:
					info, err = bounded.Head(ctx, key)
				default:
					size := []int{0, 600, 30 << 10, 90 << 10}[rnd.IntN(4)]
					info, err = bounded.Create(ctx, key, body(size), objstore.PutOptions{})
					if err != nil && !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrExists) {
						t.Errorf("PUT %s: %v", key, err)
					}
				}
				cancel()
				switch {
				case err != nil:
					failed.Add(1)
				case info.ETag != `"`+key+`"`:
					t.Errorf("%s: the answer to another request: %+v", key, info)
				default:
					good.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if good.Load() < 100 || failed.Load() < 100 {
		t.Errorf("%d requests succeeded, %d failed", good.Load(), failed.Load())
	}
}
