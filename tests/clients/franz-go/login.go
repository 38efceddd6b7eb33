package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const loginSeconds = 2

// way is that of tests/clients/drivers/serve.py.
type way struct {
	Bootstrap, Protocol, CA, Certificate, Key, Mechanism, User, Password, Token string
}

func (w way) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(w.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if w.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(w.Certificate, w.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (w way) sasl() sasl.Mechanism {
	switch w.Mechanism {
	case "PLAIN":
		return plain.Auth{User: w.User, Pass: w.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: w.User, Pass: w.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: w.User, Pass: w.Password}.AsSha512Mechanism()
	default:
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := os.ReadFile(w.Token)
			return oauth.Auth{Token: string(token)}, err
		})
	}
}

func (d *driver) logIn(ctx context.Context, w way) (any, error) {
	config, err := w.tls()
	if err != nil {
		return nil, err
	}
	options := []kgo.Opt{kgo.SeedBrokers(w.Bootstrap), kgo.DialTLSConfig(config), kgo.RequestRetries(0), kgo.RetryTimeout(loginSeconds * time.Second)}
	if w.Mechanism != "" {
		options = append(options, kgo.SASL(w.sasl()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	if d.way != nil {
		d.way.Close()
	}
	d.way = kadm.NewClient(client)
	return d.topics(ctx)
}

func (d *driver) topics(ctx context.Context) (any, error) {
	bounded, cancel := context.WithTimeout(ctx, loginSeconds*time.Second)
	defer cancel()
	found, err := d.way.ListTopics(bounded)
	return found.Names(), err
}
