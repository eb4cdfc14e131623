package all

import (
	"os"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	store "lightmetrics.dev/lightmetrics/services/objectstore"
)

// user is a user in a settings file of the store.
type user struct {
	Name        string `yaml:"name"`
	AccessKeyID string `yaml:"access_key_id"`
	Policy      string `yaml:"policy"`
}

// storeUsers reads the users of a settings file.
func storeUsers(t *testing.T, text []byte) []user {
	t.Helper()
	var file struct {
		Objectstore struct {
			Users []user `yaml:"users"`
		} `yaml:"objectstore"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Objectstore.Users
}

// TestStoreUsersHoldThePolicy: with the users that "lightmetrics all" makes, and with those of
// deploy/settings, a collector passes the probes of store.policy require. The reconciler's user,
// which folds the journal, fails those two alone.
func TestStoreUsersHoldThePolicy(t *testing.T) {
	dir := t.TempDir()
	creds, err := openCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.DataDir = dir
	made, err := yaml.Marshal((&plan{cfg: cfg, creds: creds, file: map[string]section{}}).of(objectstore))
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := os.ReadFile("../../../../deploy/settings/objectstore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"all": made, "deploy": shipped} {
		t.Run(name, func(t *testing.T) {
			users := storeUsers(t, text)
			if len(users) != 2 || users[0].Name != servicesUser || users[1].Name != reconcilerUser {
				t.Fatalf("%+v", users)
			}
			oc := store.DefaultConfig()
			oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = "127.0.0.1:0", "", t.TempDir(), []string{"lightmetrics"}
			for _, u := range users {
				oc.Users = append(oc.Users, store.User{Name: u.Name, AccessKeyID: u.AccessKeyID, Secret: "secret-of-this-test", Policy: u.Policy})
			}
			addr := serveStore(t, oc)
			for i, want := range []int{0, 2} {
				c := s3.DefaultConfig()
				c.Endpoint, c.Bucket, c.PathStyle = "http://"+addr, "lightmetrics", true
				c.AccessKeyID, c.SecretAccessKey = users[i].AccessKeyID, config.Secret("secret-of-this-test")
				bucket, err := s3.New(t.Context(), c, s3.Options{})
				if err != nil {
					t.Fatal(err)
				}
				r, err := qualify.Run(t.Context(), bucket, qualify.Options{RunID: "r", Strict: true, Now: time.Now})
				if r.Failed() != want {
					t.Errorf("%s: %v", users[i].Name, err)
				}
			}
		})
	}
}

// TestDeployedUsersHaveThePrintedPolicy: the policies in the file are those that the program makes.
func TestDeployedUsersHaveThePrintedPolicy(t *testing.T) {
	shipped, err := os.ReadFile("../../../../deploy/settings/objectstore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range storeUsers(t, shipped) {
		want, err := bucketpolicy.User("lightmetrics", i == 1)
		if err != nil || u.Policy != string(want) {
			t.Errorf("%s: %v, want\n%s", u.Name, err, want)
		}
	}
}

func serveStore(t *testing.T, c store.Config) string {
	t.Helper()
	s, err := store.New(c, store.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }() // ends with the test's context
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-s.Ready()
	return s.Addr()
}
