package objectstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// mirroredCoded are settings with 2+1 shards on three places, and the log on several drives.
func mirroredCoded(t *testing.T, mirrors int) objectstore.Config {
	c := mirrored(t, mirrors)
	c = withPlaces(t, c, 3, 2)
	c.Redundancy.Data, c.Redundancy.Parity, c.Redundancy.Threshold = 2, 1, 2<<20
	return c
}

// TestPlacesWithoutTheFirstDrive: the ledger is where the index is, so the store with places starts without the drive of dir,
// and a new drive there gets everything.
func TestPlacesWithoutTheFirstDrive(t *testing.T) {
	cfg := mirroredCoded(t, 2)
	bodies := map[string][]byte{"small": []byte("in the log"), "coded": large(3), "copied": large(1)[1:]}
	s := start(t, cfg)
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	settled(t, s.AdminAddr(), 3)
	check := func(what string) {
		t.Helper()
		for k, b := range bodies {
			if !bytes.Equal(get(t, s.client(), k), b) {
				t.Errorf("%s: %s is another body", what, k)
			}
		}
		key := fmt.Sprint("more ", what)
		bodies[key] = append(large(2), what...)
		put(t, s.client(), key, bodies[key])
		settled(t, s.AdminAddr(), int64(3*(len(bodies)-2)))
	}
	s.stop()

	// The drive of dir is not there: its path leads nowhere.
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	check("without the drive")
	s.stop()

	// A blank one was put in.
	if err := os.Remove(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	s.waitInSync(3)
	check("with a new drive")
	s.stop()

	// And it is enough alone with one of the others.
	if err := os.RemoveAll(cfg.Mirrors[0]); err != nil {
		t.Fatal(err)
	}
	s = start(t, cfg)
	check("with the new drive and another one")
}

// TestReplacedPlaceOnSeveralDrives: that a place was replaced is written to all drives, so it counts whichever of them is lost.
func TestReplacedPlaceOnSeveralDrives(t *testing.T) {
	cfg := mirroredCoded(t, 2)
	dirs := append([]string{cfg.Dir}, cfg.Mirrors...)
	s := start(t, cfg)
	body := large(3)
	put(t, s.client(), "key", body)
	settled(t, s.AdminAddr(), 3)
	if err := objectstore.ReplacePlace("drive1", dirs...); !errors.Is(err, objectstore.ErrLocked) {
		t.Errorf("replaced while the store runs: %v", err)
	}
	s.stop()
	blank(t, cfg.Places[1].Dir)
	if err := objectstore.ReplacePlace("drive1", cfg.Dir); err == nil {
		t.Error("replaced on one drive of three")
	}
	if err := objectstore.ReplacePlace("drive1", dirs...); err != nil {
		t.Fatal(err)
	}
	blank(t, cfg.Dir)
	s = start(t, cfg)
	settled(t, s.AdminAddr(), 3)
	if n := len(filesOf(t, cfg.Places[1])); n != 1 {
		t.Errorf("%d files on the new drive", n)
	}
	if !bytes.Equal(get(t, s.client(), "key"), body) {
		t.Error("another body")
	}
}

// TestIndexMovesWithPlaces: the drive with the index and the ledger fails under load. The store opens itself again, with its
// places, and goes on.
func TestIndexMovesWithPlaces(t *testing.T) {
	cfg := mirroredCoded(t, 2)
	cfg.Segment = 64 << 10
	s := start(t, cfg)
	bodies := map[string][]byte{"a": large(3), "b": large(2), "small": []byte("x")}
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	settled(t, s.AdminAddr(), 6)
	if err := os.Rename(cfg.Dir, cfg.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	put(t, s.client(), "while", large(4))
	bodies["while"] = large(4)
	for i := range 10 { // the drive is missed when the log needs a new segment
		key := fmt.Sprint("roll", i)
		bodies[key] = large(1)[:20<<10]
		again := func() error {
			_, err := s.client().PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(bodies[key])})
			return err
		}
		for end := time.Now().Add(patience); again() != nil; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) { // nobody answers while the store is opened again
				t.Fatal(again())
			}
		}
	}
	for end := time.Now().Add(patience); !movedTo(s.drives(), 1); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("drives: %+v", s.drives())
		}
	}
	put(t, s.client(), "after", large(5))
	bodies["after"] = large(5)
	settled(t, s.AdminAddr(), 12)
	for k, b := range bodies {
		if !bytes.Equal(get(t, s.client(), k), b) {
			t.Errorf("%s is another body", k)
		}
	}
}

// blank puts an empty directory in the place of one.
func blank(t *testing.T, dir string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
}

// TestKill9AndLoseADrive: a real process with its log on three drives, encrypted bodies and 2+1 shards on three places is killed
// under load at a random moment, and each drive and each place is lost in turn. What was acknowledged is there byte for byte.
func TestKill9AndLoseADrive(t *testing.T) {
	cfg := mirroredCoded(t, 2)
	cfg.Encryption.Keys = []objectstore.EncryptionKey{{ID: "one", File: keyFile(t, "1")}}
	cfg.Encryption.Current = "one"
	dirs := append([]string{cfg.Dir}, cfg.Mirrors...)
	acked := map[string][]byte{}
	p := spawnCoded(t, cfg.Dir, cfg, "")
	seed := rand.Uint64()
	for round := range len(dirs) + len(cfg.Places) {
		c, rnd := sdk(p.url, testKey, testSecret), rand.New(rand.NewPCG(seed, uint64(round)))
		var mu sync.Mutex
		var wg sync.WaitGroup
		for w := range 3 {
			sizes := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			wg.Go(func() {
				for i := 0; ; i++ {
					size := sizes.IntN(4000) + 1
					if i%2 == 0 {
						size = 1<<20 + sizes.IntN(3<<20)
					}
					key := fmt.Sprintf("k/%d/%d/%d", round, w, i)
					b := bytes.Repeat([]byte(key), size/len(key)+1)
					if _, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(b)}); err != nil {
						return
					}
					mu.Lock()
					acked[key] = b
					mu.Unlock()
				}
			})
		}
		enough := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acked) >= 10*(round+1)
		}
		for end := time.Now().Add(patience); !enough() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		p.kill(t)
		wg.Wait()
		if round < len(dirs) {
			blank(t, dirs[round])
		} else {
			place := cfg.Places[round-len(dirs)]
			blank(t, place.Dir)
			if err := objectstore.ReplacePlace(place.Name, dirs...); err != nil {
				t.Fatal(err)
			}
		}
		p = spawnCoded(t, cfg.Dir, cfg, "")
		c = sdk(p.url, testKey, testSecret)
		for key, b := range acked {
			if !bytes.Equal(get(t, c, key), b) {
				t.Fatalf("round %d (seed %d): %s is another body", round, seed, key)
			}
		}
		whole(t, p.admin, len(dirs))
	}
	if len(acked) < 30 {
		t.Errorf("only %d PUTs were acknowledged", len(acked))
	}
}

// whole waits until all drives are in sync, and every file is where it should be.
func whole(t *testing.T, addr string, drives int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var d objectstore.Drives
		var s objectstore.RedundancyStatus
		admin(t, addr, http.MethodGet, "/drives", "", "", &d)
		admin(t, addr, http.MethodGet, "/redundancy", "", "", &s)
		other := int64(0)
		for _, f := range s.Files {
			if f.State != "durable" {
				other += f.Files
			}
		}
		listed := true
		for _, pl := range s.Places {
			listed = listed && !pl.Listing.Ended.IsZero()
		}
		if d.InSync == drives && other == 0 && s.Queued == 0 && s.DeadLetters == 0 && listed {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not whole: %+v %+v", d, s)
		}
	}
}

// TestCheckAndRepairWithEverything: a store on several drives, with encrypted bodies on places, is checked and repaired without its
// keys. What is needed stays, and works afterwards.
func TestCheckAndRepairWithEverything(t *testing.T) {
	cfg := mirroredCoded(t, 2)
	cfg.Encryption.Keys = []objectstore.EncryptionKey{{ID: "one", File: keyFile(t, "1")}}
	cfg.Encryption.Current = "one"
	s := start(t, cfg)
	bodies := map[string][]byte{"coded": longBody(3 << 20), "copied": longBody(1100 << 10), "small": longBody(100)}
	for k, b := range bodies {
		put(t, s.client(), k, b)
	}
	st := settled(t, s.AdminAddr(), 3+2)
	if len(keysOf(t, s).Keys) == 0 || st.DeadLetters != 0 {
		t.Errorf("%+v", st)
	}
	s.stop()
	for _, p := range cfg.Places {
		if found := onDisk(t, p.Dir); len(found) > 0 {
			t.Errorf("in the clear: %v", found)
		}
	}
	bare := cfg
	bare.Encryption = objectstore.Encryption{}
	log := telemetry.Discard().Log
	v, err := objectstore.Check(ctx, bare, log)
	if err != nil || v.Objects != 3 || len(v.Damages) > 0 || len(v.Lost) > 0 {
		t.Errorf("check: %+v, %v", v, err)
	}
	r, err := objectstore.Repair(ctx, bare, log)
	if err != nil || len(r.Lost) > 0 || len(r.Files) > 0 {
		t.Errorf("repair: %+v, %v", r, err)
	}
	s = start(t, cfg)
	settled(t, s.AdminAddr(), 3+2)
	s.waitInSync(3)
	for k, b := range bodies {
		if !bytes.Equal(get(t, s.client(), k), b) {
			t.Errorf("%s is another body", k)
		}
	}
}
