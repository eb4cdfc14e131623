package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// front stands before a store of another make: while it is off, nobody reaches the store, and requests under way are cut.
type front struct {
	url string
	on  atomic.Bool
}

func newFront(t *testing.T, target string) *front {
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{}
	f.on.Store(true)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // it is signed
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !f.on.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

// TestThreeMakesAsPlaces: a store whose places are a drive and buckets of three makes, versitygw, moto and the embedded store. Each of the
// three in turn is cut off under load: nothing that was acknowledged is lost or unreadable meanwhile, and what is missing is made when it
// is back.
func TestThreeMakesAsPlaces(t *testing.T) {
	gw, moto := StartVersityGW(t), StartMoto(t)
	far := objectstoretest.Start(t, objectstoretest.Config(t, Bucket))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, moto+"/"+Bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
	cfg := objectstoretest.Config(t, Bucket)
	cfg.AdminListen, cfg.AckCopies = "127.0.0.1:0", 1
	cfg.Redundancy.Data, cfg.Redundancy.Parity, cfg.Redundancy.Threshold = 2, 2, 1<<20
	cfg.Places = []objectstore.Place{{Name: "drive", Dir: t.TempDir()}}
	fronts := []*front{newFront(t, gw.Endpoint), newFront(t, moto), newFront(t, "http://"+far.Addr())}
	for i, p := range []objectstore.Place{
		{Name: "versitygw", AccessKeyID: gw.AccessKeyID, Secret: config.Secret(gw.SecretAccessKey)}, {Name: "moto", AccessKeyID: "any", Secret: "any-secret"},
		{Name: "embedded", AccessKeyID: objectstoretest.Key, Secret: objectstoretest.Secret},
	} {
		p.Endpoint, p.Bucket, p.Region = fronts[i].url, Bucket, "us-east-1"
		cfg.Places = append(cfg.Places, p)
	}
	svc := objectstoretest.Start(t, cfg)
	sc := s3.DefaultConfig()
	sc.Endpoint, sc.Bucket, sc.PathStyle, sc.AccessKeyID, sc.SecretAccessKey = "http://"+svc.Addr(), Bucket, true, objectstoretest.Key, config.Secret(objectstoretest.Secret)
	store, err := s3.New(t.Context(), sc, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	acked := map[string][]byte{}
	write := func() {
		key := fmt.Sprint("k", len(acked))
		b := bytes.Repeat([]byte(key+"-0123456789"), 200_000)
		if _, err := store.Create(t.Context(), key, b, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		acked[key] = b
	}
	read := func(when string) {
		t.Helper()
		for key, want := range acked {
			if got, _, err := store.Get(t.Context(), key, objstore.GetOptions{}); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s has %d bytes of %d, %v", when, key, len(got), len(want), err)
			}
		}
	}
	for i, f := range fronts {
		name := cfg.Places[i+1].Name
		write()
		write()
		f.on.Store(false)
		write()
		write()
		read("without " + name)
		f.on.Store(true)
		settle(t, svc.AdminAddr(), int64(4*len(acked)), name)
		read("with " + name + " again")
	}
}

// settle waits until all files are there and nothing waits.
func settle(t *testing.T, addr string, files int64, when string) {
	t.Helper()
	var s objectstore.RedundancyStatus
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get("http://" + addr + "/redundancy")
		if err != nil {
			t.Fatal(err)
		}
		err = json.NewDecoder(resp.Body).Decode(&s)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		n, other := int64(0), int64(0)
		for _, f := range s.Files {
			if f.State == "durable" {
				n = f.Files
			} else {
				other += f.Files
			}
		}
		if n == files && other == 0 && s.Queued == 0 && s.DeadLetters == 0 {
			return
		}
	}
	t.Fatalf("%s: %+v", when, s)
}
