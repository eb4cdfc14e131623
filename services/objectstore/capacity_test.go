package objectstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestCapacities: places get what their capacities allow and no more. A store whose places are full refuses large bodies as one on a
// full disk does, takes small ones and deletes, and takes large ones again when there is room.
func TestCapacities(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := withPlaces(t, testConfig(t.TempDir()), 3, 2)
	cfg.Reserve = 0
	for i, mib := range []config.Bytes{8, 16, 16} {
		cfg.Places[i].Capacity = mib << 20
	}
	s := start(t, cfg)
	c := s.client()
	write := func(key string, b []byte) (status int) {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(b)}, func(o *s3.Options) { o.RetryMaxAttempts = 1 })
		var re *awshttp.ResponseError
		if err == nil {
			return http.StatusOK
		}
		if !errors.As(err, &re) {
			t.Fatal(err)
		}
		return re.HTTPStatusCode()
	}
	n := 0
	for ; n < 30; n++ {
		if status := write(fmt.Sprint("k", n), append(large(2), byte(n))); status == http.StatusInsufficientStorage {
			break
		} else if status != http.StatusOK {
			t.Fatalf("body %d: %d", n, status)
		}
	}
	// 40 MiB are twenty copies of 2 MiB, less what stays free, and the last place alone takes none.
	if n < 6 || n > 10 {
		t.Fatalf("%d bodies fit", n)
	}
	if status := write("small", []byte("small")); status != http.StatusOK {
		t.Errorf("a small body: %d", status)
	}
	for i := range cfg.Places {
		var sum int64
		for _, f := range filesOf(t, cfg.Places[i]) {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			sum += st.Size()
		}
		// The last file may be over it.
		if most := int64(cfg.Places[i].Capacity) + 3<<20; sum == 0 || sum > most {
			t.Errorf("%s has %d bytes", cfg.Places[i].Name, sum)
		}
	}
	st := settled(t, s.AdminAddr(), int64(2*n))
	full := 0
	for _, p := range st.Places {
		if p.Full {
			full++
		}
		if strings.HasPrefix(p.Name, "drive") && (p.Capacity == 0 || p.Room != p.Capacity || p.Used == 0 || p.Weight == 0) {
			t.Errorf("%+v", p)
		}
	}
	if full < 2 {
		t.Errorf("%d places are full: %+v", full, st.Places)
	}
	for i := range n - 1 {
		if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String(fmt.Sprint("k", i))}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); write("again", large(2)) != http.StatusOK; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is room, and no large body is taken")
		}
	}
}

// TestCapacityIsChecked: a capacity below zero is refused.
func TestCapacityIsChecked(t *testing.T) {
	cfg := withPlaces(t, testConfig(t.TempDir()), 1, 1)
	cfg.Places[0].Capacity = -1
	if _, err := objectstore.New(cfg, objectstore.Deps{}); err == nil || !strings.Contains(err.Error(), "capacity") {
		t.Error(err)
	}
}
