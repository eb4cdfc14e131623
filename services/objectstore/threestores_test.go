package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// forwarder keeps the address of a store that is started again on another port.
type forwarder struct {
	l      net.Listener
	target atomic.Pointer[string]
	conns  sync.WaitGroup
}

func newForwarder(t *testing.T) *forwarder {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{l: l}
	f.conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.conns.Go(func() { f.forward(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return f
}

func (f *forwarder) forward(c net.Conn) {
	defer c.Close()
	to := f.target.Load()
	if to == nil {
		return
	}
	s, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = io.Copy(s, c); _ = s.Close() }()
	_, _ = io.Copy(c, s)
}

// TestThreeStoresAsPlaces: a store with one local drive and buckets of three other stores as places. One of them is killed under
// load: nothing that was acknowledged is lost or unreadable, and its files are made when it is back.
func TestThreeStoresAsPlaces(t *testing.T) {
	root := t.TempDir()
	cfg := withPlaces(t, testConfig(filepath.Join(root, "main")), 1, 1)
	cfg.Redundancy.Data, cfg.Redundancy.Parity, cfg.Redundancy.Threshold = 2, 2, 1<<20
	var fronts []*forwarder
	var kills []func()
	serve := func(i int) func() {
		cmd, url := spawn(t, filepath.Join(root, fmt.Sprint("store", i)))
		addr := strings.TrimPrefix(url, "http://")
		fronts[i].target.Store(&addr)
		return func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	for i := range 3 {
		if err := os.Mkdir(filepath.Join(root, fmt.Sprint("store", i)), 0o700); err != nil {
			t.Fatal(err)
		}
		fronts = append(fronts, newForwarder(t))
		kills = append(kills, serve(i))
		cfg.Places = append(cfg.Places, objectstore.Place{Name: fmt.Sprint("store", i), Endpoint: "http://" + fronts[i].l.Addr().String(), Bucket: bucket,
			Region: "us-east-1", AccessKeyID: testKey, Secret: config.Secret(testSecret)})
	}
	s := start(t, cfg)
	c := s.client()
	acked := map[string][]byte{}
	write := func(n int) {
		key, b := fmt.Sprint("k", n), append(large(1+n%3), byte(n), 1)
		if _, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(b)}); err != nil {
			t.Errorf("write %s: %v", key, err)
			return
		}
		acked[key] = b
	}
	for n := range 6 {
		write(n)
		if n == 2 {
			kills[1]()
		}
	}
	for key, b := range acked {
		if !bytes.Equal(get(t, c, key), b) {
			t.Errorf("%s while a store is away is another body", key)
		}
	}
	kills[1] = serve(1)
	if st := settled(t, s.AdminAddr(), 6*4); st.DeadLetters != 0 {
		t.Errorf("%+v", st)
	}
	// The local drive and another store are gone: two of four are left.
	if err := os.Rename(cfg.Places[0].Dir, cfg.Places[0].Dir+"-gone"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	kills[0]()
	s = start(t, cfg)
	for key, b := range acked {
		if !bytes.Equal(get(t, s.client(), key), b) {
			t.Errorf("%s from two of four places is another body", key)
		}
	}
}
