package s3api

import (
	"encoding/xml"
	"net/http"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// settingWebsite is the name under which the engine keeps a bucket's website configuration. The S3 API only keeps it: as on
// AWS, websites are served at another endpoint, which this store does not have.
const settingWebsite = "website"

const (
	// maxWebsiteBytes bounds a website configuration; AWS has 128 KiB, a setting of the engine half of it.
	maxWebsiteBytes = maxSettingBytes
	// maxRoutingRules is AWS's limit.
	maxRoutingRules = 50
)

type websiteConfiguration struct {
	XMLName     xml.Name           `xml:"WebsiteConfiguration"`
	RedirectAll *websiteRedirectTo `xml:"RedirectAllRequestsTo"`
	Index       *websiteIndex      `xml:"IndexDocument"`
	Error       *websiteError      `xml:"ErrorDocument"`
	Rules       []routingRule      `xml:"RoutingRules>RoutingRule,omitempty"`
}

type websiteRedirectTo struct {
	HostName string
	Protocol string `xml:",omitempty"`
}

type (
	websiteIndex struct{ Suffix string }
	websiteError struct{ Key string }
)

type routingRule struct {
	Condition *routingCondition
	Redirect  *routingRedirect
}

type routingCondition struct {
	KeyPrefixEquals             *string
	HttpErrorCodeReturnedEquals *string
}

type routingRedirect struct {
	Protocol             *string
	HostName             *string
	ReplaceKeyPrefixWith *string
	ReplaceKeyWith       *string
	HttpRedirectCode     *string
}

func parseWebsite(text []byte) (*websiteConfiguration, error) {
	var w websiteConfiguration
	if xml.Unmarshal(text, &w) != nil {
		return nil, s3err.MalformedXML
	}
	w.XMLName = xml.Name{Space: xmlns, Local: "WebsiteConfiguration"}
	if w.RedirectAll != nil {
		if w.Index != nil || w.Error != nil || len(w.Rules) > 0 || w.RedirectAll.HostName == "" {
			return nil, s3err.MalformedXML
		}
		return &w, checkProtocol(w.RedirectAll.Protocol)
	}
	switch {
	case w.Index == nil:
		return nil, s3err.Argument("IndexDocument", "null", "A value for IndexDocument Suffix must be provided if RedirectAllRequestsTo is empty")
	case w.Index.Suffix == "" || strings.Contains(w.Index.Suffix, "/"):
		return nil, s3err.Argument("IndexDocument", w.Index.Suffix, "The IndexDocument Suffix is not well formed")
	case w.Error != nil && validKey(w.Error.Key) != nil:
		return nil, s3err.Argument("ErrorDocument", w.Error.Key, "The ErrorDocument Key is not well formed")
	case len(w.Rules) > maxRoutingRules:
		return nil, s3err.InvalidRequest.With("%d routing rules provided, the number of routing rules in a website configuration is limited to %d.", len(w.Rules), maxRoutingRules)
	}
	for _, r := range w.Rules {
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	return &w, nil
}

func checkProtocol(p string) error {
	if p != "" && p != "http" && p != "https" {
		return s3err.InvalidRequest.With("Invalid protocol, protocol can be http or https. If not defined the protocol will be selected automatically.")
	}
	return nil
}

func (r routingRule) check() error {
	if c := r.Condition; c != nil {
		if c.KeyPrefixEquals == nil && c.HttpErrorCodeReturnedEquals == nil {
			return s3err.MalformedXML
		}
		if err := checkCode(c.HttpErrorCodeReturnedEquals, isErrorCode,
			"The provided HTTP error code (%d) is not valid. Valid codes are 4XX or 5XX."); err != nil {
			return err
		}
	}
	d := r.Redirect
	if d == nil || *d == (routingRedirect{}) {
		return s3err.MalformedXML
	}
	if d.ReplaceKeyWith != nil && d.ReplaceKeyPrefixWith != nil {
		return s3err.InvalidRequest.With("You can only define ReplaceKeyPrefix or ReplaceKey but not both.")
	}
	if err := checkCode(d.HttpRedirectCode, isRedirectCode,
		"The provided HTTP redirect code (%d) is not valid. Valid codes are 3XX except 300."); err != nil {
		return err
	}
	if d.Protocol != nil {
		return checkProtocol(*d.Protocol)
	}
	return nil
}

// isErrorCode and isRedirectCode take the statuses of RFC 9110 that AWS takes.
func isErrorCode(n int) bool    { return n >= 400 && n <= 417 || n >= 500 && n <= 505 }
func isRedirectCode(n int) bool { return n >= 301 && n <= 308 && n != 306 }

// checkCode refuses what is no number, and a number that is no such status.
func checkCode(text *string, valid func(int) bool, message string) error {
	if text == nil {
		return nil
	}
	n, err := strconv.Atoi(*text)
	if err != nil {
		return s3err.MalformedXML
	}
	if !valid(n) {
		return s3err.InvalidRequest.With(message, n)
	}
	return nil
}

func (c *call) getWebsite() error {
	return c.getSetting("GetBucketWebsite", settingWebsite, s3err.NoSuchWebsite)
}

func (c *call) putWebsite() error {
	return c.putSetting("PutBucketWebsite", settingWebsite, maxWebsiteBytes, &websiteConfiguration{},
		func(text []byte) (any, error) { return parseWebsite(text) }, http.StatusOK)
}

func (c *call) deleteWebsite() error { return c.deleteSetting("DeleteBucketWebsite", settingWebsite) }
